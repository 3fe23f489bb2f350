"""Measured runs of clusters that differ in their settings: one run, and a list of them, repeated.

Starting the clusters is the caller's part; what the figures mean is that of the benchmarks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from exspec.bench.load import (
    REQUEST_SECONDS,
    LoadPlan,
    ignore_progress,
    repeated,
    run_load,
    totals_between,
)
from exspec.client import Client, GenerateOptions
from exspec.core.cluster import ClusterStatus, Totals
from exspec.core.errors import ExspecError, InvalidRequestError

WARM_UP_TOKENS = 24
WARM_UP_REQUESTS_PER_ROW = 2
MIN_WARM_UP_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is different from run to run. `speculation` is the coordinator's setting, as text.

    `prompt_set` names the prompts where a benchmark has several sets of them.
    """

    policy: str
    batch_size: int
    speculation: str
    prompt_set: str = ""

    @property
    def name(self) -> str:
        """For people."""
        where = f"{self.policy}, B = {self.batch_size}, K = {self.speculation}"
        return f"{where}, {self.prompt_set} prompts" if self.prompt_set else where


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What is sent to a cluster. If stop tokens are ignored every request has `max_tokens` tokens.

    `num_in_flight` None: all requests are sent at once, so that the queue is the coordinator's.
    """

    max_tokens: int
    num_in_flight: int | None = None
    request_seconds: float = REQUEST_SECONDS
    ignore_eos: bool = True

    def load(self, max_tokens: int, num_prompts: int) -> LoadPlan:
        """How that many prompts are sent."""
        options: GenerateOptions = {
            "max_tokens": max_tokens,
            "ignore_eos": self.ignore_eos,
            "timeout": self.request_seconds,
        }
        return LoadPlan(self.num_in_flight or num_prompts, options)


@dataclass(frozen=True, slots=True)
class RunSample:
    """One run: per prompt, in order, its tokens and the seconds from its sending to its end.

    `totals` are the cluster's sums over this run alone; `status` is how the cluster stood after it.
    """

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    latency_seconds: tuple[float, ...]
    totals: Totals
    status: ClusterStatus

    @property
    def tokens_per_second(self) -> float:
        """Tokens generated, over the time from the first request to the last answer."""
        return sum(map(len, self.token_ids)) / self.seconds if self.seconds > 0 else 0.0

    def latency(self, share: float) -> float:
        """Seconds within which this share of the requests ended."""
        return percentile(self.latency_seconds, share)

    def num_identical(self, reference: Sequence[tuple[int, ...]]) -> int:
        """Requests whose tokens are all those of the reference."""
        return sum(own == other for own, other in zip(self.token_ids, reference, strict=True))


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that brought no figures, and why."""

    configuration: Configuration
    reason: str


@dataclass(slots=True)
class Runs:
    """Owns what was measured so far, by configuration, in the order it was asked for."""

    samples: dict[Configuration, list[RunSample]] = field(
        default_factory=dict[Configuration, list[RunSample]]
    )
    failures: list[FailedRun] = field(default_factory=list[FailedRun])

    def figure(
        self, configuration: Configuration, of: Callable[[RunSample], float]
    ) -> float | None:
        """Median of a figure over the repeats; None if every one of them failed."""
        samples = self.samples.get(configuration)
        return statistics.median(map(of, samples)) if samples else None


def run_all(
    configurations: Sequence[Configuration],
    num_repeats: int,
    measure: Callable[[Configuration], RunSample],
    runs: Runs,
    on_done: Callable[[Configuration, RunSample | FailedRun], None],
) -> None:
    """Measure every configuration, then every one again, …: a slow hour meets all of them alike.

    A run that fails with an error of ours is noted, and the others go on. `runs` take what comes,
    so that whoever is interrupted still has it.
    """
    if num_repeats < 1:
        raise InvalidRequestError("at least one repeat is needed", field="repeats")
    for configuration in tuple(configurations) * num_repeats:
        try:
            outcome = measure(configuration)
        except ExspecError as error:
            outcome = FailedRun(configuration, f"{type(error).__name__}: {error}")
            runs.failures.append(outcome)
        else:
            runs.samples.setdefault(configuration, []).append(outcome)
        on_done(configuration, outcome)


def measure_run(
    address: str,
    prompts: Sequence[tuple[int, ...]],
    plan: RunPlan,
    batch_size: int,
    on_done: Callable[[], None] = ignore_progress,
) -> RunSample:
    """Warm a cluster up, then send it all prompts.

    The warm-up lasts several rounds of full batches, so that the passes of all sizes have been met
    once and a cluster that decides how far it speculates has seen what that costs.

    Raises:
        ExspecError: a request failed, so that the figures would mean nothing.
    """
    num_warm_up = max(MIN_WARM_UP_REQUESTS, WARM_UP_REQUESTS_PER_ROW * batch_size)
    warm_up = replace(plan, num_in_flight=None).load(WARM_UP_TOKENS, num_warm_up)
    run_load(address, repeated(prompts, num_warm_up), warm_up).raise_first_error()
    before = _status(address)
    load = plan.load(plan.max_tokens, len(prompts))
    outcome = run_load(address, prompts, load, on_done)
    outcome.raise_first_error()
    status = _status(address)
    return RunSample(
        seconds=outcome.seconds,
        token_ids=tuple(result.token_ids for result in outcome.completed),
        latency_seconds=outcome.latency_seconds,
        totals=totals_between(before.totals, status.totals),
        status=status,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of all lies, between neighbours in proportion."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    index = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    above = ordered[min(index + 1, len(ordered) - 1)]
    return ordered[index] + (place - index) * (above - ordered[index])


def _status(address: str) -> ClusterStatus:
    with Client(address) as client:
        return client.cluster_status()
