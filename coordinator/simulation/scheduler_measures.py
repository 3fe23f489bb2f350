"""Measuring the scheduler itself, with a clock that is handed in. Only sums live here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from coordinator.simulation.results import SchedulerFigures
from coordinator.simulation.spreads import spread

Clock = Callable[[], float]


class SchedulerMeasures:
    """Owns what `handle` took, in all and per round.

    A round's share is all that was handled since the round before it was sent; rounds that one
    event sends share it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_events = 0
        self._total = 0.0
        self._since_round = 0.0
        self._per_round: list[float] = []

    @contextlib.contextmanager
    def measured(self) -> Generator[None]:
        """Around one call of `handle`."""
        started = self._clock()
        yield
        seconds = self._clock() - started
        self._num_events += 1
        self._total += seconds
        self._since_round += seconds

    def note_rounds(self, num_rounds: int) -> None:
        """The event that was handled last sent so many rounds to be verified."""
        if num_rounds:
            self._per_round.extend([self._since_round / num_rounds] * num_rounds)
            self._since_round = 0.0

    def figures(self) -> SchedulerFigures:
        """All of it."""
        return SchedulerFigures(self._num_events, self._total, spread(self._per_round))
