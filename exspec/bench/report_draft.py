"""Draft cost as table cells, lines and plain values. Imported where torch is loaded already."""

from __future__ import annotations

from dataclasses import asdict

from exspec.bench.draft_cost import MAX_REST_GROWTH, DraftCost, DraftCostPlan, DraftCosts

DRAFT_COST_COLUMNS = (
    "context",
    "ms/round",
    "to the\nshortest",
    "attention\nms",
    "attention\nshare",
    "all else\nms",
    "beyond the\ntiny context",
    "with a prefill\nevery round, ms",
    "that is",
)


def draft_cost_rows(costs: DraftCosts) -> list[tuple[str, ...]]:
    """Cells of the tiny context and of every other."""
    shortest = min(costs.costs, key=lambda cost: cost.context)
    return [_row(cost, shortest, costs.tiny) for cost in (costs.tiny, *costs.costs)]


def draft_cost_lines(costs: DraftCosts) -> list[str]:
    """The result in words."""
    contexts = sorted(cost.context for cost in costs.costs)
    word = "met   " if costs.is_flat else "MISSED"
    return [
        f"from {contexts[0]} to {contexts[-1]} tokens of context a round grows by "
        f"{costs.round_growth:+.1%}, without its attention by {costs.rest_growth:+.1%}",
        f"{word}  without its attention a round grows by at most {MAX_REST_GROWTH:.0%}: measured "
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
        "rest_seconds": cost.rest_seconds,
        "attention_share": cost.attention_share,
    }


def _row(cost: DraftCost, shortest: DraftCost, tiny: DraftCost) -> tuple[str, ...]:
    return (
        str(cost.context),
        _ms(cost.round_seconds),
        f"{cost.round_seconds / shortest.round_seconds:.2f} x",
        _ms(cost.attention_seconds),
        f"{cost.attention_share:.1%}",
        _ms(cost.rest_seconds),
        f"{1 - tiny.round_seconds / cost.round_seconds:.1%}",
        _ms(cost.prefilled_seconds),
        f"{cost.prefilled_seconds / cost.round_seconds:.1f} x",
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
