"""A circuit breaker: whether a worker that failed is given work, and when it is tried again.

Closed: it works. Open: it failed, and is left alone for a while that grows with every failure in a
row. Half-open: one trial is under way, and decides. A pure state machine: the time is passed in, in
seconds on a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from exspec.core.errors import InternalError


class CircuitState(Enum):
    """Where a circuit stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


MOVES: dict[CircuitState, frozenset[CircuitState]] = {
    # it failed
    CircuitState.CLOSED: frozenset({CircuitState.OPEN}),
    # the wait is over
    CircuitState.OPEN: frozenset({CircuitState.HALF_OPEN}),
    # the trial succeeded, or it did not
    CircuitState.HALF_OPEN: frozenset({CircuitState.CLOSED, CircuitState.OPEN}),
}


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a circuit stays open: twice as long with every failure in a row, within bounds."""

    first_seconds: float
    longest_seconds: float

    def seconds(self, num_failures: int) -> float:
        """After so many failures in a row, one at least."""
        return min(self.first_seconds * 2.0 ** min(num_failures - 1, 64), self.longest_seconds)


class Breaker:
    """Owns one circuit. An illegal move raises InternalError and changes nothing."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._state = CircuitState.CLOSED
        self._num_failures = 0
        self._retry_at = 0.0

    @property
    def state(self) -> CircuitState:
        """Where it stands."""
        return self._state

    @property
    def num_failures(self) -> int:
        """Failures since it last did real work. A trial that succeeds is no real work."""
        return self._num_failures

    def seconds_left(self, now: float) -> float:
        """Until it may be tried; 0 when it may, or is not open."""
        return max(0.0, self._retry_at - now) if self._state is CircuitState.OPEN else 0.0

    def fail(self, now: float) -> None:
        """It failed at work, or at its trial."""
        self._move(CircuitState.OPEN)
        self._num_failures += 1
        self._retry_at = now + self._backoff.seconds(self._num_failures)

    def miss(self, now: float) -> None:
        """It could not be tried: again after as long a wait as the last one, no longer."""
        self._move(CircuitState.OPEN)
        self._retry_at = now + self._backoff.seconds(max(1, self._num_failures))

    def begin_trial(self, now: float) -> None:
        """The wait is over, and it is being tried."""
        if self.seconds_left(now) > 0:
            raise InternalError("a circuit is tried before its time")
        self._move(CircuitState.HALF_OPEN)

    def pass_trial(self) -> None:
        """The trial succeeded. Failing again before any work makes the next wait longer still."""
        self._move(CircuitState.CLOSED)

    def note_work(self) -> None:
        """It did real work: failures are counted anew."""
        if self._state is not CircuitState.CLOSED:
            raise InternalError(f"work came over a circuit that is {self._state.value}")
        self._num_failures = 0

    def _move(self, state: CircuitState) -> None:
        if state not in MOVES[self._state]:
            raise InternalError(f"a circuit cannot go from {self._state.value} to {state.value}")
        self._state = state
