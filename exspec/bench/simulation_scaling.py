"""The scenario "scaling": does throughput grow with targets until drafts are saturated?

The shape of a data centre: a verify costs the same whatever is in it. 256 rows are in flight,
shared out among targets that verify 16 at a time. For each cluster the throughput is held against
what no schedule can exceed.

Drafts are modelled in two ways. "batch": 4 ms whatever is in it, so that a batch with rows of all
targets costs no more than one with a single row, and drafts are never saturated. "row": the same
4 ms for 16 rows, but in proportion to the rows, so that drafts have a capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from exspec.bench.rounds import Expectation
from exspec.bench.simulation import Chart, Document, Findings, Line, RunPlan, Sample, Study, Table

NUM_ROWS = 256
BATCH_SIZE = 16
NUM_DRAFT_TOKENS = 5
ACCEPTANCE = 0.7
REQUESTS_PER_ROW = 2
PROMPT_TOKENS = 16
OUTPUT_TOKENS = "120..240"
"""Spread, so that rows do not end in lockstep as they would nowhere else."""
TARGETS = (1, 2, 4, 8)
DRAFTS = (1, 2, 4, 8, 16)
WIRES = (0.2, 1.0, 5.0)
"""Milliseconds, one direction."""
ROW_DRAFTS_WIRES = (1.0,)
"""Those at which drafts are modelled by the row, too."""

DRAFT_SECONDS = 4e-3
DRAFTS_BY_ROW = {
    "fixed_seconds": 0.0,
    "per_row_step_seconds": DRAFT_SECONDS / BATCH_SIZE / NUM_DRAFT_TOKENS,
}

BY_BATCH: Document = {"preset": "data-centre", "draft": {"fixed_seconds": DRAFT_SECONDS}}
BY_ROW: Document = {"preset": "data-centre", "draft": DRAFTS_BY_ROW}

MAX_BELOW_BOUND = 0.05
MAX_SCALING_LOSS = 0.05
SATURATION = 0.95
"""Drafts are saturated where they bound a target to less than this share of its own pace."""

Key = tuple[tuple[str, float, int], int]
"""What a line of a chart has in common (drafts by what, wire, their number), and the targets."""

COLUMNS = (
    "drafts\ncost by",
    "wire\nms",
    "targets",
    "drafts",
    "tokens/s",
    "bound",
    "ratio",
    "bound by",
    "per target\nadded",
    "rows/\nround",
    "target\nbusy",
    "draft\nbusy",
    "waited",
    "sched.\nus/round",
)


def scaling_study(
    targets: Sequence[int] = TARGETS,
    drafts: Sequence[int] = DRAFTS,
    wires: Sequence[float] = WIRES,
    row_drafts_wires: Sequence[float] = ROW_DRAFTS_WIRES,
    seed: int = 0,
) -> Study:
    """One run per way to model drafts, wire, number of draft workers and number of targets."""
    machines = (
        *((BY_BATCH, wire) for wire in wires),
        *((BY_ROW, wire) for wire in row_drafts_wires),
    )
    plans = tuple(
        _plan(costs, wire, num_drafts, num_targets, seed)
        for (costs, wire), num_drafts, num_targets in product(machines, drafts, targets)
    )
    return Study(plans, _findings)


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens of a row per round (E): 1 + p + ... + p^K."""
    return sum(acceptance**count for count in range(num_drafts + 1))


def round_bound(sample: Sample) -> tuple[float, str]:
    """Seconds that a target's group round takes at least, and what bounds it.

    V: the target verifies one group at a time. D_eff: the share of the draft workers' time that a
    group takes, where it is in proportion to rows. (V+D+R)/G: a group's own round, with G groups in
    play, R being four times the wire.
    """
    asked, costs = sample.asked, sample.plan["costs"]
    verify, wire = costs["verify"]["fixed_seconds"], 4 * costs["wire"]["seconds"]
    alone, share = DRAFT_SECONDS, 0.0
    if _drafts_cost_by(sample) == "row":
        alone = DRAFT_SECONDS / min(asked.num_drafts, BATCH_SIZE)
        share = DRAFT_SECONDS * asked.num_targets / asked.num_drafts
    num_groups = math.ceil(NUM_ROWS / asked.num_targets / BATCH_SIZE)
    return max(
        (verify, "target"), (share, "drafts"), ((verify + alone + wire) / num_groups, "round")
    )


def throughput_bound(sample: Sample) -> float:
    """Tokens per second that no schedule exceeds, all targets together.

    Up to a hundredth: the last round of a request drafts less than K, so it costs drafts less.
    """
    per_round = BATCH_SIZE * expected_tokens(ACCEPTANCE, NUM_DRAFT_TOKENS)
    return sample.asked.num_targets * per_round / round_bound(sample)[0]


def _drafts_cost_by(sample: Sample) -> str:
    return "row" if sample.asked.costs == BY_ROW else "batch"


def _plan(costs: Document, wire: float, num_drafts: int, num_targets: int, seed: int) -> RunPlan:
    return RunPlan(
        costs=costs,
        wire_milliseconds=wire,
        policy="exspec",
        batch_size=BATCH_SIZE,
        window_size=NUM_ROWS // num_targets,
        num_speculative_tokens=str(NUM_DRAFT_TOKENS),
        num_targets=num_targets,
        num_drafts=num_drafts,
        num_requests=NUM_ROWS * REQUESTS_PER_ROW,
        prompt_tokens=str(PROMPT_TOKENS),
        output_tokens=OUTPUT_TOKENS,
        acceptance=str(ACCEPTANCE),
        arrivals=f"closed:{NUM_ROWS}",
        seed=seed,
    )


def _findings(samples: Sequence[Sample]) -> Findings:
    title = (
        f"data-centre: {NUM_ROWS} rows in flight, {BATCH_SIZE} per verify, K = {NUM_DRAFT_TOKENS}, "
        f"acceptance {ACCEPTANCE}, exspec"
    )
    before = {_key(sample): sample for sample in samples}
    rows = tuple(_row(sample, _gain(sample, before)) for sample in samples)
    expected = (*_bound_expectations(samples), *_gain_expectations(samples, before))
    return Findings((Table(title, COLUMNS, rows),), expected, _charts(samples))


def _key(sample: Sample) -> Key:
    asked = sample.asked
    wire = asked.wire_milliseconds or 0.0
    return (_drafts_cost_by(sample), wire, asked.num_drafts), asked.num_targets


def _gain(sample: Sample, samples: Mapping[Key, Sample]) -> float | None:
    """Throughput per target, against the next smaller number of targets."""
    kind, num_targets = _key(sample)
    smaller = [number for other, number in samples if other == kind and number < num_targets]
    if not smaller:
        return None
    base = samples[kind, max(smaller)]
    growth = sample.steady_tokens_per_second / base.steady_tokens_per_second
    return growth * max(smaller) / num_targets


def _row(sample: Sample, gain: float | None) -> tuple[str, ...]:
    bound = throughput_bound(sample)
    return (
        _drafts_cost_by(sample),
        f"{sample.asked.wire_milliseconds:g}",
        str(sample.asked.num_targets),
        str(sample.asked.num_drafts),
        f"{sample.steady_tokens_per_second:.0f}",
        f"{bound:.0f}",
        f"{sample.steady_tokens_per_second / bound:.3f}",
        round_bound(sample)[1],
        "-" if gain is None else f"{gain:.3f}",
        f"{sample.figure('rounds', 'rows_per_round'):.2f}",
        f"{sample.figure('workers', 'target_utilisation'):.1%}",
        f"{sample.figure('workers', 'draft_utilisation'):.1%}",
        f"{sample.figure('rounds', 'max_waited_rounds'):.0f}",
        f"{1e6 * sample.figures['scheduler']['round_seconds']['mean']:.0f}",
    )


def _name(sample: Sample) -> str:
    asked = sample.asked
    return (
        f"by {_drafts_cost_by(sample)}, wire {asked.wire_milliseconds:g} ms, "
        f"{asked.num_targets} targets, {asked.num_drafts} drafts"
    )


def _bound_expectations(samples: Sequence[Sample]) -> list[Expectation]:
    return [
        Expectation(
            f"{_name(sample)}: below the bound by at most {MAX_BELOW_BOUND:.0%}",
            1 - sample.steady_tokens_per_second / throughput_bound(sample),
            MAX_BELOW_BOUND,
        )
        for sample in samples
    ]


def _gain_expectations(
    samples: Sequence[Sample], before: Mapping[Key, Sample]
) -> list[Expectation]:
    """Of clusters that neither drafts nor the round itself hold back."""
    found: list[Expectation] = []
    for sample in samples:
        gain = _gain(sample, before)
        verify = sample.plan["costs"]["verify"]["fixed_seconds"]
        if gain is None or round_bound(sample)[0] * SATURATION > verify:
            continue
        text = f"{_name(sample)}: lost per added target at most {MAX_SCALING_LOSS:.0%}"
        found.append(Expectation(text, 1 - gain, MAX_SCALING_LOSS))
    return found


def _charts(samples: Sequence[Sample]) -> tuple[Chart, ...]:
    """One panel per machine: throughput and bound against targets, a line per number of drafts."""
    machines = dict.fromkeys(_key(sample)[0][:2] for sample in samples)
    return tuple(
        Chart(
            f"drafts cost by {kind}, wire {wire:g} ms",
            "targets",
            "tokens/s",
            _lines([sample for sample in samples if _key(sample)[0][:2] == (kind, wire)]),
        )
        for kind, wire in machines
    )


def _lines(samples: Sequence[Sample]) -> tuple[Line, ...]:
    lines: list[Line] = []
    for num_drafts in sorted({sample.asked.num_drafts for sample in samples}):
        chosen = [sample for sample in samples if sample.asked.num_drafts == num_drafts]
        xs = tuple(float(one.asked.num_targets) for one in chosen)
        measured = tuple(one.steady_tokens_per_second for one in chosen)
        bounds = tuple(throughput_bound(one) for one in chosen)
        lines.append(Line(f"{num_drafts} draft workers", xs, measured))
        lines.append(Line("", xs, bounds, is_reference=True))
    return tuple(lines)
