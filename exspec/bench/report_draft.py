"""Draft cost as table cells, lines and plain values. Imported where torch is loaded already."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from exspec.bench.draft_cost import MAX_REST_GROWTH, DraftCost, DraftCostPlan, DraftCosts
from exspec.bench.step_cost import StepCost

DRAFT_COST_COLUMNS = (
    "context",
    "median\nms/round",
    "fastest\nms/round",
    "to the\nshortest",
    "attention\nms",
    "attention\nshare",
    "all else\nms",
    "to the\nshortest",
    "with a prefill\nevery round",
)


STEP_COST_COLUMNS = (
    "rows",
    "draft step\nfastest ms",
    "median ms",
    "plain step\nfastest ms",
    "median ms",
    "share of the\nplain step",
    "of medians",
)


def step_cost_rows(costs: Sequence[StepCost]) -> list[tuple[str, ...]]:
    """Cells of every batch size."""
    return [
        (
            str(cost.num_rows),
            _ms(min(cost.draft_seconds)),
            _ms(statistics.median(cost.draft_seconds)),
            _ms(min(cost.target_seconds)),
            _ms(statistics.median(cost.target_seconds)),
            f"{cost.share:.1%}",
            f"{cost.median_share:.1%}",
        )
        for cost in costs
    ]


def step_cost_dict(costs: Sequence[StepCost]) -> list[dict[str, object]]:
    """For JSON."""
    return [
        {**asdict(cost), "share": cost.share, "median_share": cost.median_share} for cost in costs
    ]


def draft_cost_rows(costs: DraftCosts) -> list[tuple[str, ...]]:
    """Cells of the tiny context and of every other."""
    return [_row(cost, costs.costs[0]) for cost in (costs.tiny, *costs.costs)]


def draft_cost_lines(costs: DraftCosts) -> list[str]:
    """The result in words."""
    contexts = [cost.context for cost in costs.costs]
    word = "met   " if costs.is_flat else "MISSED"
    return [
        "ratios are of the fastest rounds; attention is timed inside rounds of its own",
        f"from {contexts[0]} to {contexts[-1]} tokens of context a round grows by "
        f"{costs.round_growth:+.1%}",
        f"{word}  without its attention it grows by at most {MAX_REST_GROWTH:.0%}: measured "
        f"{costs.rest_growth:+.1%}",
    ]


def draft_cost_dict(plan: DraftCostPlan, costs: DraftCosts) -> dict[str, object]:
    """For JSON."""
    return {
        **asdict(plan),
        "tiny": _dict(costs.tiny),
        "costs": [_dict(cost) for cost in costs.costs],
        "round_growth": costs.round_growth,
        "rest_growth": costs.rest_growth,
        "is_flat": costs.is_flat,
    }


def _dict(cost: DraftCost) -> dict[str, object]:
    return {
        **asdict(cost),
        "median_seconds": cost.median_seconds,
        "fastest_seconds": cost.fastest_seconds,
        "attention_seconds": cost.attention_seconds,
        "rest_seconds": cost.rest_seconds,
        "attention_share": cost.attention_share,
        "prefill_ratio": cost.prefill_ratio,
    }


def _row(cost: DraftCost, shortest: DraftCost) -> tuple[str, ...]:
    return (
        str(cost.context),
        _ms(cost.median_seconds),
        _ms(cost.fastest_seconds),
        f"{cost.fastest_seconds / shortest.fastest_seconds:.2f} x",
        _ms(cost.attention_seconds),
        f"{cost.attention_share:.1%}",
        _ms(cost.rest_seconds),
        f"{cost.rest_seconds / shortest.rest_seconds:.2f} x",
        f"{cost.prefill_ratio:.1f} x",
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
