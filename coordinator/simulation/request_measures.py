"""Counting what happens to requests in a run. Only counts; nothing acts on them."""

from __future__ import annotations

from coordinator.simulation.results import RequestFigures
from coordinator.simulation.spreads import ratio, spread
from exspec.core.ids import SequenceId

STEADY_FROM = 0.25
STEADY_UNTIL = 0.75


class RequestMeasures:
    """Owns arrival and first-token times, latencies, and when tokens came."""

    def __init__(self) -> None:
        self._arrived: dict[SequenceId, float] = {}
        self._is_silent: set[SequenceId] = set()
        self._first_token: list[float] = []
        self._latency: list[float] = []
        self._commits: list[tuple[float, int]] = []
        self._num_tokens = 0

    @property
    def num_finished(self) -> int:
        """Requests that ended."""
        return len(self._latency)

    def note_arrival(self, sequence_id: SequenceId, now: float) -> None:
        """A request came."""
        self._arrived[sequence_id] = now
        self._is_silent.add(sequence_id)

    def note_tokens(self, sequence_id: SequenceId, num_tokens: int, now: float) -> None:
        """A request got tokens."""
        self._num_tokens += num_tokens
        self._commits.append((now, self._num_tokens))
        if sequence_id in self._is_silent:
            self._is_silent.remove(sequence_id)
            self._first_token.append(now - self._arrived[sequence_id])

    def note_end(self, sequence_id: SequenceId, now: float) -> None:
        """A request has all its tokens."""
        self._latency.append(now - self._arrived.pop(sequence_id))

    def figures(self) -> RequestFigures:
        """All of it; the run lasted until the last token."""
        seconds = self._commits[-1][0] if self._commits else 0.0
        return RequestFigures(
            num_requests=len(self._latency),
            num_tokens=self._num_tokens,
            seconds=seconds,
            tokens_per_second=ratio(self._num_tokens, seconds),
            steady_tokens_per_second=self._steady(),
            requests_per_second=ratio(len(self._latency), seconds),
            latency=spread(self._latency),
            first_token=spread(self._first_token),
        )

    def _steady(self) -> float:
        """From the first commit past a quarter of all tokens to the first past three quarters."""
        bounds = (STEADY_FROM * self._num_tokens, STEADY_UNTIL * self._num_tokens)
        first, last = (
            next(((at, num) for at, num in self._commits if num >= bound), (0.0, 0))
            for bound in bounds
        )
        return ratio(last[1] - first[1], last[0] - first[0])
