"""Compared drafts as table cells, lines and plain values. No printing, no measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from exspec.bench.drafts import ALL, DraftSample, DraftsRuns, DraftTally

UNKNOWN = "-"
CATEGORY_COLUMNS = (
    "category",
    "draft",
    "requests",
    "tokens",
    "acceptance\nlength",
    "rounds that accept\n1, 2, … drafts",
    "looked up, of\nthe accepted",
    "identical\nto plain",
)
DRAFT_COLUMNS = (
    "draft",
    "acceptance\nlength",
    "ms per\ndraft token",
    "ms per\nplain step",
    "draft token /\nplain step",
    "late\ndrafts",
)
HOW_COUNTED = (
    "acceptance length: tokens committed per round, sums over requests; the first token of a "
    "request and its pass do not count, and the last round is cut where the request ends"
)


def category_rows(runs: DraftsRuns) -> list[tuple[str, ...]]:
    """Cells of every category, all drafts below each other."""
    return [
        _category_row(category, sample, runs.tally(sample, category))
        for category in runs.categories
        for sample in runs.samples
    ]


def _category_row(category: str, sample: DraftSample, tally: DraftTally) -> tuple[str, ...]:
    identical = UNKNOWN if tally.num_identical is None else str(tally.num_identical)
    return (
        category or ALL,
        sample.draft.name,
        str(tally.num_requests),
        str(tally.num_tokens),
        f"{tally.acceptance_length:.2f}",
        " ".join(f"{100 * rate:.0f}" for rate in tally.rates) + " %",
        f"{tally.looked_up_share:.0%}",
        f"{identical}/{tally.num_requests}",
    )


def draft_rows(runs: DraftsRuns) -> list[tuple[str, ...]]:
    """Cells of every draft over all prompts."""
    return [_draft_row(sample, runs.tally(sample)) for sample in runs.samples]


def _draft_row(sample: DraftSample, tally: DraftTally) -> tuple[str, ...]:
    cost = sample.cost
    return (
        sample.draft.name,
        f"{tally.acceptance_length:.2f}",
        _milliseconds(cost.draft_seconds),
        _milliseconds(cost.plain_seconds),
        UNKNOWN if cost.share is None else f"{cost.share:.1%}",
        str(sample.num_late),
    )


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds:.2f}"


def drafts_lines(runs: DraftsRuns) -> list[tuple[str, bool]]:
    """What is to be said of the figures, and whether it is good."""
    lines = [(HOW_COUNTED, True)]
    for sample in runs.samples:
        tally = runs.tally(sample)
        if tally.num_identical is not None and tally.num_identical < tally.num_requests:
            number = tally.num_requests - tally.num_identical
            lines.append((f"{sample.draft.name}: {number} outputs are not those of plain", False))
        if sample.num_late:
            text = f"{sample.draft.name}: {sample.num_late} draft batches came too late or failed"
            lines.append((f"{text}: what they would have brought is missing", False))
    lines += [(f"FAILED  {name}: {reason}", False) for name, reason in runs.failures.items()]
    return lines


def drafts_dict(plan: object, runs: DraftsRuns) -> dict[str, object]:
    """For JSON."""
    return {
        "plan": plan,
        "drafts": [_draft_dict(runs, sample) for sample in runs.samples],
        "failures": dict(runs.failures),
    }


def _draft_dict(runs: DraftsRuns, sample: DraftSample) -> dict[str, object]:
    named: Sequence[str] = [one for one in runs.categories if one != ALL]
    return {
        **asdict(sample.draft),
        **_tally_dict(runs.tally(sample)),
        "cost": {**asdict(sample.cost), "share": sample.cost.share},
        "num_late": sample.num_late,
        "totals": asdict(sample.totals),
        "categories": {one: _tally_dict(runs.tally(sample, one)) for one in named},
    }


def _tally_dict(tally: DraftTally) -> dict[str, object]:
    return {
        **asdict(tally),
        "acceptance_length": tally.acceptance_length,
        "rates": tally.rates,
        "looked_up_share": tally.looked_up_share,
    }
