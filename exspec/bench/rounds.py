"""Where the time of a round goes, by number of requests in flight, and what was expected of it.

Measures a cluster that is already running; starting one is the caller's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exspec.bench.load import LoadPlan, ignore_progress, repeated, run_load, totals_between
from exspec.client import Client, GenerateOptions
from exspec.core.cluster import Totals

SLOTS_LAYOUT = "slots"
MAX_SLOTS_ALIGN_SHARE = 0.01
MAX_REST_SHARE = 0.05
REST_BATCH_SIZE = 8
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """What is sent: for every batch size B, `requests_per_row` * B requests with B in flight.

    Stop tokens are ignored, so that all rows stay for `max_tokens` tokens and the batch stays full.
    """

    batch_sizes: tuple[int, ...]
    requests_per_row: int
    max_tokens: int
    num_speculative_tokens: int

    @property
    def num_requests(self) -> int:
        """Requests that are measured, over all batch sizes."""
        return sum(self.batch_sizes) * self.requests_per_row

    def options(self, max_tokens: int) -> GenerateOptions:
        """Options of a request."""
        return {
            "max_tokens": max_tokens,
            "num_speculative_tokens": self.num_speculative_tokens,
            "ignore_eos": True,
        }


@dataclass(frozen=True, slots=True)
class RoundsSample:
    """One layout at one batch size. `totals` are the cluster's sums over this run alone."""

    layout: str
    batch_size: int
    num_requests: int
    num_tokens: int
    seconds: float
    totals: Totals

    @property
    def rows_per_round(self) -> float:
        """Mean rows that a round decided something for."""
        return self.totals.rows_per_round

    @property
    def acceptance_length(self) -> float:
        """Tokens a row gets per round, bonus token included; 0 before a round."""
        return self.totals.acceptance_length

    @property
    def round_milliseconds(self) -> float:
        """Mean time of a round."""
        return 1000 * _ratio(self.totals.round_seconds, self.totals.num_rounds)

    @property
    def shares(self) -> RoundShares:
        """Where that time went."""
        return round_shares(self.totals)


@dataclass(frozen=True, slots=True)
class RoundShares:
    """Parts of a round that add up to 1. `rest` is gRPC and scheduling: what no worker reports."""

    draft: float
    verify: float
    align: float
    worker_overhead: float
    rest: float


@dataclass(frozen=True, slots=True)
class Expectation:
    """A bound a figure was expected to keep, and whether it did."""

    text: str
    measured: float
    bound: float

    @property
    def is_met(self) -> bool:
        """Whether it did."""
        return self.measured <= self.bound


def round_shares(totals: Totals) -> RoundShares:
    """Shares of the summed round time; all 0 before a round."""
    whole = totals.round_seconds
    draft = _ratio(totals.draft_seconds, whole)
    verify = _ratio(totals.verify_seconds, whole)
    align = _ratio(totals.align_seconds, whole)
    overhead = _ratio(totals.worker_overhead_seconds, whole)
    rest = 1 - draft - verify - align - overhead if whole > 0 else 0.0
    return RoundShares(draft, verify, align, overhead, rest)


def measure_rounds(
    address: str,
    layout: str,
    prompts: Sequence[tuple[int, ...]],
    plan: RoundsPlan,
    on_done: Callable[[], None] = ignore_progress,
) -> list[RoundsSample]:
    """One sample per batch size, in the order given.

    Raises:
        ExspecError: a request failed, so that the figures would mean nothing.
    """
    samples: list[RoundsSample] = []
    for batch_size in plan.batch_sizes:
        load = LoadPlan(batch_size, plan.options(plan.max_tokens))
        warm_up = LoadPlan(batch_size, plan.options(WARM_UP_TOKENS))
        run_load(address, repeated(prompts, batch_size), warm_up).raise_first_error()
        before = _totals(address)
        wanted = repeated(prompts, batch_size * plan.requests_per_row)
        outcome = run_load(address, wanted, load, on_done)
        outcome.raise_first_error()
        samples.append(
            RoundsSample(
                layout=layout,
                batch_size=batch_size,
                num_requests=len(wanted),
                num_tokens=outcome.num_tokens,
                seconds=outcome.seconds,
                totals=totals_between(before, _totals(address)),
            )
        )
    return samples


def expectations(samples: Sequence[RoundsSample]) -> list[Expectation]:
    """What the design promises of the measured shares."""
    found: list[Expectation] = []
    for sample in samples:
        where = f"{sample.layout}, B = {sample.batch_size}"
        if sample.layout == SLOTS_LAYOUT:
            text = f"{where}: alignment at most {MAX_SLOTS_ALIGN_SHARE:.0%} of a round"
            found.append(Expectation(text, sample.shares.align, MAX_SLOTS_ALIGN_SHARE))
        if sample.batch_size == REST_BATCH_SIZE:
            text = f"{where}: gRPC and scheduling at most {MAX_REST_SHARE:.0%} of a round"
            found.append(Expectation(text, sample.shares.rest, MAX_REST_SHARE))
    return found


def _totals(address: str) -> Totals:
    with Client(address) as client:
        return client.cluster_status().totals


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
