"""The scenario "cost": what the scheduler itself takes, by targets and size of a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from exspec.bench.simulation import Chart, Findings, Line, RunPlan, Sample, Study, Table

NUM_ROWS = 256
TARGETS = (1, 2, 4, 8)
GROUP_SIZES = (4, 8, 16, 32)

COLUMNS = (
    "targets",
    "group\nsize",
    "rounds",
    "rows/\nround",
    "events/\nround",
    "us/round\nmean",
    "P50",
    "P90",
    "P99",
    "us/row",
)


def cost_study(
    targets: Sequence[int] = TARGETS, group_sizes: Sequence[int] = GROUP_SIZES, seed: int = 0
) -> Study:
    """256 rows in flight, one draft worker per target, K chosen by the scheduler."""
    plans = tuple(
        RunPlan(
            costs="data-centre",
            policy="exspec",
            batch_size=size,
            window_size=max(size, NUM_ROWS // num_targets),
            num_targets=num_targets,
            num_drafts=num_targets,
            num_requests=NUM_ROWS,
            prompt_tokens="16..64",
            output_tokens="64..128",
            arrivals="all",
            seed=seed,
        )
        for num_targets, size in product(targets, group_sizes)
    )
    return Study(plans, _findings)


def _findings(samples: Sequence[Sample]) -> Findings:
    title = f"processor time of the scheduler, {NUM_ROWS} rows in flight, exspec, K = auto"
    table = Table(title, COLUMNS, tuple(_row(sample) for sample in samples))
    return Findings((table,), charts=(_chart(samples),))


def _row(sample: Sample) -> tuple[str, ...]:
    scheduler = sample.figures["scheduler"]
    times = scheduler["round_seconds"]
    num_rounds = sample.figure("rounds", "num_rounds")
    rows = sample.figure("rounds", "num_row_rounds")
    return (
        str(sample.asked.num_targets),
        str(sample.asked.batch_size),
        f"{num_rounds:.0f}",
        f"{sample.figure('rounds', 'rows_per_round'):.2f}",
        f"{scheduler['num_events'] / num_rounds:.2f}",
        *(f"{1e6 * times[name]:.0f}" for name in ("mean", "p50", "p90", "p99")),
        f"{1e6 * scheduler['total_seconds'] / rows:.1f}",
    )


def _chart(samples: Sequence[Sample]) -> Chart:
    lines: list[Line] = []
    for size in sorted({sample.asked.batch_size for sample in samples}):
        chosen = [sample for sample in samples if sample.asked.batch_size == size]
        xs = tuple(float(one.asked.num_targets) for one in chosen)
        ys = tuple(1e6 * one.figures["scheduler"]["round_seconds"]["mean"] for one in chosen)
        lines.append(Line(f"group of {size}", xs, ys))
    return Chart("scheduler, 256 rows", "targets", "microseconds per round", tuple(lines))
