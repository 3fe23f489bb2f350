"""What totals do not tell: how requests' times are spread, which places of a draft are accepted.

Counted where things happen, a few additions each; `coordinator.metrics` gives them names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from exspec.core.acceptance import FinishReason
from exspec.core.cluster import Totals
from exspec.core.generation import Completed
from exspec.core.metrics import Histogram, HistogramValue

# vLLM's buckets (vllm/v1/metrics/loggers.py), so that dashboards and percentiles compare.
_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Leaving(Enum):
    """Why a worker's sequences go on elsewhere."""

    LOST = "lost"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measures of one moment.

    `drafted_per_position[i]` rows of rounds had a draft token at place `i`, and
    `accepted_per_position[i]` of them kept it. `waiting_seconds` is what is left of the rounds'
    time after what the workers reported: gRPC, scheduling, and waiting for each other.
    """

    time_to_first_token: HistogramValue
    time_per_output_token: HistogramValue
    request_latency: HistogramValue
    queue_time: HistogramValue
    finished: dict[FinishReason, int]
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    migrations: dict[Leaving, int]
    num_departures: int
    waiting_seconds: float
    num_wasted_tokens: int


class Measures:
    """Owns the counts; changed on the event loop only."""

    def __init__(self) -> None:
        self._time_to_first_token = Histogram(_FIRST_TOKEN_BOUNDS)
        self._time_per_output_token = Histogram(_TOKEN_BOUNDS)
        self._request_latency = Histogram(_REQUEST_BOUNDS)
        self._queue_time = Histogram(_REQUEST_BOUNDS)
        self._finished = Counter[FinishReason]()
        self._drafted = Counter[int]()
        self._accepted = Counter[int]()
        self._migrations = Counter[Leaving]()
        self._num_departures = 0
        self._waiting_seconds = 0.0
        self._num_wasted_tokens = 0

    def note_completed(self, completed: Completed) -> None:
        """A request ended well."""
        self._finished[completed.finish_reason] += 1
        timings = completed.timings
        self._queue_time.observe(timings.queue_seconds)
        self._time_to_first_token.observe(timings.time_to_first_token_seconds)
        self._request_latency.observe(timings.total_seconds)
        num_later = completed.usage.num_generated_tokens - 1
        if num_later > 0:
            decoding = timings.total_seconds - timings.time_to_first_token_seconds
            self._time_per_output_token.observe(decoding / num_later)

    def note_row(self, num_drafted: int, num_accepted: int) -> None:
        """A round decided something for a row."""
        self._drafted[num_drafted] += 1
        self._accepted[num_accepted] += 1

    def note_wasted(self, num_tokens: int) -> None:
        """A sequence ended; so many proposals of draft workers had been made for it in vain."""
        self._num_wasted_tokens += num_tokens

    def note_round(self, totals: Totals) -> None:
        """A round was added to the totals. What a counter has shown it never takes back."""
        known = totals.draft_seconds + totals.verify_seconds + totals.align_seconds
        left = totals.round_seconds - known - totals.worker_overhead_seconds
        self._waiting_seconds = max(self._waiting_seconds, left)

    def note_leaving(self, leaving: Leaving, num_sequences: int) -> None:
        """A worker with that many sequences drains, or is gone."""
        self._migrations[leaving] += num_sequences
        self._num_departures += leaving is Leaving.LOST

    @property
    def value(self) -> Measured:
        """The measures so far; nothing of it changes any more."""
        return Measured(
            self._time_to_first_token.value,
            self._time_per_output_token.value,
            self._request_latency.value,
            self._queue_time.value,
            dict(self._finished),
            reaching(self._drafted),
            reaching(self._accepted),
            dict(self._migrations),
            self._num_departures,
            self._waiting_seconds,
            self._num_wasted_tokens,
        )


def reaching(rounds_by_length: Counter[int]) -> tuple[int, ...]:
    """For every place of a round, how many rounds are long enough to have a token there."""
    longest = max(rounds_by_length, default=0)
    ending = (rounds_by_length[length] for length in range(longest, 0, -1))
    return tuple(accumulate(ending))[::-1]
