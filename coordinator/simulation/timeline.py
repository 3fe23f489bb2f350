"""Virtual time: things that happen at a moment, in order. No decision lives here."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Timeline:
    """Owns the virtual clock and what is still to happen.

    Actions of one moment run in the order in which they were put in, so a run is a function of
    its plan.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._entries: list[tuple[float, int, Action]] = []
        self._num_created = 0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._now

    def at(self, seconds: float, action: Action) -> None:
        """Let an action happen at a moment that has not passed yet.

        Raises:
            ValueError: it has passed.
        """
        if seconds < self._now:
            raise ValueError(f"{seconds} s has passed: it is {self._now} s")
        heapq.heappush(self._entries, (seconds, self._num_created, action))
        self._num_created += 1

    def step(self) -> bool:
        """Let the next action happen; False when nothing is left."""
        if not self._entries:
            return False
        self._now, _, action = heapq.heappop(self._entries)
        action()
        return True
