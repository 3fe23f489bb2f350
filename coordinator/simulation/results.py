"""What a run brought, as values. No arithmetic beyond ratios of what is stored."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.simulation.spreads import Spread


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What clients saw. Seconds from arrival; rates per second of the whole run.

    `steady_tokens_per_second` is over the middle half of all tokens, without the beginning and the
    end, when a cluster is not full.
    """

    num_requests: int
    num_tokens: int
    seconds: float
    tokens_per_second: float
    steady_tokens_per_second: float
    requests_per_second: float
    latency: Spread
    first_token: Spread


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """What rounds looked like. A round is a verify batch that decides at least one token.

    Grouped: no row had to be realigned. `grouping_rate` is the share among batches of at least two
    deciding rows, `full_grouping_rate` the share of full grouped ones among the same,
    `aligned_rate` among all, where single rows count as grouped. `max_waited_rounds`: rounds that
    a target was sent between two of one row. `wasted_drafts`: proposed and not accepted.
    """

    num_rounds: int
    num_row_rounds: int
    num_prefill_batches: int
    num_single_row_rounds: int
    grouping_rate: float
    full_grouping_rate: float
    aligned_rate: float
    acceptance_length: float
    rows_per_round: float
    max_waited_rounds: int
    num_drafted: int
    num_verified: int
    num_accepted: int
    num_overdue: int
    draft_lengths: dict[int, int]

    @property
    def wasted_drafts(self) -> int:
        """Draft tokens that were proposed and not accepted."""
        return self.num_drafted - self.num_accepted


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What workers did: shares of the time they were there, and seconds of work, all together.

    `target_seconds` has the `alignment_seconds` in it.
    """

    target_utilisation: float
    draft_utilisation: float
    target_seconds: float
    draft_seconds: float
    alignment_seconds: float


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """Processor time of the scheduler itself, in seconds of the clock that was handed in."""

    num_events: int
    total_seconds: float
    round_seconds: Spread


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One run."""

    requests: RequestFigures
    rounds: RoundFigures
    workers: WorkerFigures
    scheduler: SchedulerFigures
