"""Throughput by number of targets, and whether the simulator foretells it.

What a pass costs is measured on the cluster with one target, at two batch sizes; the simulator
gets these costs and the same requests. Decoding is plain, so that a target's own pace is all that
counts. Starting clusters is the caller's part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exspec.bench.runs import RunPlan, RunSample, measure_run
from exspec.bench.simulation import RunPlan as SimulatedPlan
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError

PLAIN_K = "0"
POLICY = "exspec"


@dataclass(frozen=True, slots=True)
class VerifyLine:
    """Seconds of a plain pass, fixed + per row, and of the wire in one direction."""

    fixed_seconds: float
    per_row_seconds: float
    wire_seconds: float

    def costs(self) -> dict[str, dict[str, float]]:
        """As the simulator takes them. A prompt token costs what a row's one token costs."""
        return {
            "verify": {
                "fixed_seconds": self.fixed_seconds,
                "per_token_seconds": self.per_row_seconds,
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


def verify_line(single: Totals, full: Totals) -> VerifyLine:
    """The line through passes of one row and passes of a full batch.

    The wire is what a round of one row takes beyond what its worker reports: rows of a fuller
    batch wait for each other, one alone waits for nothing.

    Raises:
        InvalidRequestError: there were no rounds, or no more rows in the fuller ones.
    """
    rows = full.rows_per_round - single.rows_per_round
    if not single.num_rounds or rows <= 0:
        raise InvalidRequestError("two batch sizes are needed to see what a row costs")
    first, second = _pass_seconds(single), _pass_seconds(full)
    slope = max(0.0, (second - first) / rows)
    fixed = max(0.0, first - slope * single.rows_per_round)
    rest = single.round_seconds / single.num_rounds - first
    return VerifyLine(fixed, slope, max(0.0, rest / 2))


def _pass_seconds(totals: Totals) -> float:
    busy = totals.verify_seconds + totals.align_seconds + totals.worker_overhead_seconds
    return busy / totals.num_rounds


def simulated_plan(
    line: VerifyLine,
    num_targets: int,
    batch_size: int,
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
) -> SimulatedPlan:
    """The same requests on a modelled cluster."""
    return SimulatedPlan(
        costs=line.costs(),
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
    """Owns what was measured: one run per number of targets, and one target with single rows."""

    prompts: tuple[tuple[int, ...], ...] = ()
    single: RunSample | None = None
    by_targets: dict[int, RunSample] = field(default_factory=dict[int, RunSample])

    def line(self) -> VerifyLine:
        """What passes cost; both runs of the smallest cluster must be there."""
        assert self.single is not None
        return verify_line(self.single.totals, self.by_targets[1].totals)


def measure_single_rows(
    address: str, prompts: Sequence[tuple[int, ...]], plan: RunPlan
) -> RunSample:
    """One request at a time, a few of them."""
    alone = RunPlan(plan.max_tokens, num_in_flight=1, request_seconds=plan.request_seconds)
    return measure_run(address, prompts[:2], alone, 1)


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
