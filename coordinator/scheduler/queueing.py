"""Who is next in the queue: priority first, then fair turns between groups, then arrival.

Turns are those of start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with one unit of work
per sequence: each further sequence of a group that is still in the queue takes a later turn, so a
client's thousand prompts and another's single one alternate. Arithmetic; no rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A sequence's place; lower goes first. It keeps it when it has to come back."""

    priority: int
    turn: int
    arrival_index: int


class Turns:
    """Gives every arrival its place; owns the virtual time of the queue."""

    def __init__(self) -> None:
        self._now = 0
        self._queued: dict[str, list[int]] = {}
        """Turns of the sequences of each group that are in the queue, rising."""
        self._num_arrived = 0

    def place(self, priority: int, group: str) -> Place:
        """The place of a new arrival. No group: one of its own."""
        self._num_arrived += 1
        turns = self._queued.get(group)
        last = turns[-1] if turns else 0
        return Place(priority, max(self._now, last) + 1, self._num_arrived)

    def enter(self, group: str, place: Place) -> None:
        """A sequence of this group is in the queue."""
        if group:
            insort(self._queued.setdefault(group, []), place.turn)

    def leave(self, group: str, place: Place) -> None:
        """It is not any more."""
        if group:
            turns = self._queued[group]
            del turns[bisect_left(turns, place.turn)]
            if not turns:
                del self._queued[group]

    def serve(self, place: Place) -> None:
        """The sequence with this place had its turn."""
        self._now = max(self._now, place.turn)
