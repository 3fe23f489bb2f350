"""Throughput by number of targets, and whether the simulator foretells it.

What a pass costs is measured on the cluster with one target: prompts alone, rows alone, full
batches. The simulator gets these costs and the same requests. Decoding is plain, so that a target's
own pace is all that counts. Starting clusters is the caller's part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from exspec.bench.runs import RunPlan, RunSample, measure_run
from exspec.bench.simulation import RunPlan as SimulatedPlan
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError

PLAIN_K = "0"
POLICY = "exspec"
NUM_SINGLE_ROWS = 4


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a plain pass: fixed + per row + per token; and of the wire in one direction."""

    fixed_seconds: float
    per_row_seconds: float
    per_token_seconds: float
    wire_seconds: float

    def document(self) -> dict[str, dict[str, float]]:
        """As the simulator takes them."""
        return {
            "verify": {
                "fixed_seconds": self.fixed_seconds,
                "per_row_seconds": self.per_row_seconds,
                "per_token_seconds": self.per_token_seconds,
            },
            "draft": {"fixed_seconds": 0.0},
            "wire": {"seconds": self.wire_seconds},
        }


@dataclass(frozen=True, slots=True)
class TargetsSample:
    """One number of targets: what was measured and what was foretold, in tokens per second."""

    num_targets: int
    measured: float
    predicted: float
    num_identical: int
    num_requests: int

    @property
    def ratio(self) -> float:
        """Measured over predicted; 0 without a prediction."""
        return self.measured / self.predicted if self.predicted else 0.0


def pass_costs(prefill: Totals, single: Totals, full: Totals) -> PassCosts:
    """What follows from three runs: prompts alone, rows alone, and full batches.

    The wire is what a round of one row takes beyond what its worker reports: rows of a fuller
    batch wait for each other, one alone waits for nothing.

    Raises:
        InvalidRequestError: the runs are too much alike.
    """
    runs = prefill, single, full
    if not all(run.num_rounds for run in runs):
        raise InvalidRequestError("a run without rounds says nothing about their costs")
    tokens = [_tokens_per_round(run) for run in runs]
    busy = [_busy_seconds(run) for run in runs]
    rows = full.rows_per_round - single.rows_per_round
    if tokens[0] <= tokens[1] or rows <= 0:
        raise InvalidRequestError(
            "prompts of two tokens or more, and batches of two rows or more, are needed to see "
            "what a token and a row cost"
        )
    per_token = max(0.0, (busy[0] - busy[1]) / (tokens[0] - tokens[1]))
    per_row = max(0.0, (busy[2] - busy[1] - per_token * (tokens[2] - tokens[1])) / rows)
    fixed = max(0.0, busy[1] - per_row * single.rows_per_round - per_token * tokens[1])
    rest = single.round_seconds / single.num_rounds - busy[1]
    return PassCosts(fixed, per_row, per_token, max(0.0, rest / 2))


def _tokens_per_round(totals: Totals) -> float:
    """A request's last token is never fed."""
    fed = totals.num_prompt_tokens + totals.num_generated_tokens - totals.num_requests
    return fed / totals.num_rounds


def _busy_seconds(totals: Totals) -> float:
    busy = totals.verify_seconds + totals.align_seconds + totals.worker_overhead_seconds
    return busy / totals.num_rounds


def simulated_plan(
    costs: PassCosts,
    num_targets: int,
    batch_size: int,
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
) -> SimulatedPlan:
    """The same requests on a modelled cluster."""
    return SimulatedPlan(
        costs=costs.document(),
        policy=POLICY,
        batch_size=batch_size,
        num_speculative_tokens=PLAIN_K,
        num_targets=num_targets,
        num_drafts=0,
        num_requests=len(prompts),
        prompt_tokens=",".join(str(len(prompt)) for prompt in prompts),
        output_tokens=str(max_tokens),
    )


@dataclass(slots=True)
class TargetsRuns:
    """Owns what was measured: one run per number of targets, and two of single rows on one.

    `prefill` generates one token per prompt, `single` all of them.
    """

    prompts: tuple[tuple[int, ...], ...] = ()
    prefill: RunSample | None = None
    single: RunSample | None = None
    by_targets: dict[int, RunSample] = field(default_factory=dict[int, RunSample])

    def costs(self) -> PassCosts:
        """What passes cost; all runs of the smallest cluster must be there."""
        assert self.prefill is not None
        assert self.single is not None
        return pass_costs(self.prefill.totals, self.single.totals, self.by_targets[1].totals)

    def measure_single_rows(self, address: str, plan: RunPlan) -> None:
        """One request at a time on a cluster of one target."""
        alone = replace(plan, num_in_flight=1)
        self.prefill = measure_run(address, self.prompts, replace(alone, max_tokens=1), 1)
        self.single = measure_run(address, self.prompts[:NUM_SINGLE_ROWS], alone, 1)


def compared(
    measured: Mapping[int, RunSample], predicted: Mapping[int, float]
) -> list[TargetsSample]:
    """Both sides, by number of targets; tokens are held against those of the smallest cluster."""
    reference = measured[min(measured)].token_ids
    return [
        TargetsSample(
            number,
            sample.tokens_per_second,
            predicted[number],
            sample.num_identical(reference),
            len(sample.token_ids),
        )
        for number, sample in sorted(measured.items())
    ]


def pin(pid: int, core: int) -> None:
    """Keep a process and all threads it has or will have on one core (Linux).

    Raises:
        InvalidRequestError: there is no such core for us.
    """
    if core not in os.sched_getaffinity(0):
        raise InvalidRequestError(f"there is no core {core} to pin to", field="targets")
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
