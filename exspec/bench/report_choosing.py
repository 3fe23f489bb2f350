"""Cost of choosing as table cells, lines and plain values. Imported where torch is loaded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from exspec.bench.choosing_cost import (
    BOUND_KIND,
    MAX_SHARE,
    ChoosingCost,
    ChoosingCostPlan,
    Spent,
)

CHOOSING_COLUMNS = (
    "what is asked for",
    "B",
    "K",
    "greedy\nms/pass",
    "with it\nms/pass",
    "added to\na pass",
    "in processor\ntime",
)
STEP_COLUMNS = ("step of choosing", "calls\nper pass", "ms/pass", "share of\na pass")
MAX_STEPS = 12


def choosing_rows(costs: Sequence[ChoosingCost]) -> list[tuple[str, ...]]:
    """Cells of every kind and shape."""
    return [
        (
            cost.kind,
            str(cost.batch_size),
            str(cost.num_drafts),
            _ms(_median(cost.greedy)),
            _ms(_median(cost.ruled)),
            f"{cost.share:+.1%}",
            f"{cost.processor_share:+.1%}",
        )
        for cost in costs
    ]


def profiled(costs: Sequence[ChoosingCost]) -> list[ChoosingCost]:
    """Whose steps are shown: plain sampling in the largest batch."""
    largest = max(cost.batch_size for cost in costs)
    return [cost for cost in costs if cost.kind == BOUND_KIND and cost.batch_size == largest]


def step_title(cost: ChoosingCost) -> str:
    """Over the table of steps."""
    return f"where it goes: {cost.kind}, B = {cost.batch_size}, K = {cost.num_drafts}"


def step_rows(cost: ChoosingCost) -> list[tuple[str, ...]]:
    """Cells of the longest steps."""
    whole = _median(cost.ruled)
    return [
        (step.name, f"{step.num_calls:g}", _ms(step.seconds), f"{step.seconds / whole:.1%}")
        for step in cost.steps[:MAX_STEPS]
    ]


def choosing_lines(costs: Sequence[ChoosingCost]) -> list[tuple[str, bool]]:
    """Whether the promise is kept, in a line, and as a fact."""
    lines: list[tuple[str, bool]] = []
    for cost in costs:
        if cost.is_bounded:
            is_met = cost.share <= MAX_SHARE
            word = "met   " if is_met else "MISSED"
            text = (
                f"{word}  {cost.kind}, B = {cost.batch_size}, K = {cost.num_drafts}: adds at most "
                f"{MAX_SHARE:.0%} to a greedy pass: measured {cost.share:+.1%}, "
                f"in processor time {cost.processor_share:+.1%}"
            )
            lines.append((text, is_met))
    return lines


def choosing_dict(plan: ChoosingCostPlan, costs: Sequence[ChoosingCost]) -> dict[str, object]:
    """For JSON."""
    return {
        **asdict(plan),
        "costs": [
            {**asdict(cost), "share": cost.share, "processor_share": cost.processor_share}
            for cost in costs
        ],
    }


def _median(spent: Sequence[Spent]) -> float:
    return statistics.median(one.seconds for one in spent)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
