"""The equality audit as a document: everything that was measured, as plain values and as lines.

No printing and no torch; the command line decides where it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from exspec.audit.compare import Evidence
from exspec.audit.equality import Finding, Verdict


@dataclass(frozen=True, slots=True)
class Conditions:
    """How an audit was run.

    `kv_layouts` are those of the cluster's target workers, `num_target_slots` the sequences they
    can hold, `rows_per_round` what they verified at once on average. `speculation` is the number
    of draft tokens that was asked for, else the cluster's own setting. `sampling` holds what was
    asked for of the choice of tokens, as text; empty: the best ones.
    """

    dataset: str
    num_prompts: int
    num_cut_prompts: int
    max_tokens: int
    num_in_flight: int
    is_chat: bool
    stop_token_ids: tuple[int, ...]
    model: str
    served_dtype: str
    reference_dtype: str
    draft_models: tuple[str, ...]
    kv_layouts: tuple[str, ...]
    num_target_slots: int
    rows_per_round: float
    policy: str
    speculation: str
    num_tokens: int
    served_seconds: float
    sampling: str = ""

    @property
    def layout(self) -> str:
        """The layouts as one word."""
        return "+".join(self.kv_layouts)


@dataclass(frozen=True, slots=True)
class EqualityReport:
    """One audit of one cluster."""

    conditions: Conditions
    verdict: Verdict

    def as_dict(self) -> dict[str, object]:
        """For JSON: every difference, and the figures over all prompts."""
        verdict = self.verdict
        return {
            "verdict": "PASS" if verdict.passes else "FAIL",
            "exact_match": verdict.exact_match,
            "partial_match": verdict.partial_match,
            "num_exact": verdict.num_exact,
            "num_ties": verdict.num_ties,
            "num_differences": len(verdict.differences),
            "acceptance_length": verdict.speculation.acceptance_length,
            "acceptance_rate": verdict.speculation.acceptance_rate,
            "num_row_rounds": verdict.speculation.num_rounds,
            "conditions": asdict(self.conditions),
            "differences": [_finding_dict(finding) for finding in verdict.differences],
        }


SUMMARY_COLUMNS = (
    "layout",
    "prompts",
    "exact match",
    "partial match",
    "ties",
    "acceptance length",
    "tokens",
    "rows/round",
    "tokens/s",
    "verdict",
)
DIFFERENCE_COLUMNS = (
    "layout",
    "prompt",
    "kind",
    "position",
    "reference",
    "served",
    "top-2 margin",
    "gap of the two",
    "bound",
    "tie?",
)
BOUND_NOTE = (
    "margin, gap: how much nearer two logits, in float64 on the common prefix, would have to come "
    "for the other token to be chosen. bound: 2 x the largest difference "
    "between logits in the working precision and in float64 along that prefix."
)


def summary_row(report: EqualityReport) -> tuple[str, ...]:
    """Cells of one audit."""
    conditions, verdict = report.conditions, report.verdict
    speed = conditions.num_tokens / conditions.served_seconds if conditions.served_seconds else 0.0
    return (
        conditions.layout,
        str(len(verdict.findings)),
        f"{verdict.exact_match:.2%}",
        f"{verdict.partial_match:.2%}",
        str(verdict.num_ties),
        f"{verdict.speculation.acceptance_length:.2f}",
        str(conditions.num_tokens),
        f"{conditions.rows_per_round:.2f}",
        f"{speed:.1f}",
        "PASS" if verdict.passes else "FAIL",
    )


def difference_rows(report: EqualityReport) -> list[tuple[str, ...]]:
    """Cells of every difference."""
    return [_difference_row(report, finding) for finding in report.verdict.differences]


def heading(report: EqualityReport) -> str:
    """What was run, in a few lines."""
    c = report.conditions
    drafts = ", ".join(c.draft_models) or "none"
    cut = f" ({c.num_cut_prompts} cut to fit)" if c.num_cut_prompts else ""
    return (
        f"{c.num_prompts} prompts{cut} of {c.dataset}, {'chat' if c.is_chat else 'bare text'}, "
        f"at most {c.max_tokens} tokens each, stop tokens {list(c.stop_token_ids)}\n"
        f"served: {c.model} in {c.served_dtype}, draft {drafts}, policy {c.policy}, "
        f"K = {c.speculation}, {c.num_in_flight} requests in flight, "
        f"{c.num_target_slots} target slots\n"
        f"reference: plain {'decoding' if c.sampling else 'greedy decoding'} at batch 1 in "
        f"{c.reference_dtype}, transformers' own cache and attention"
        f"{' and processors; ' + c.sampling if c.sampling else ''}"
    )


def as_document(reports: Sequence[EqualityReport]) -> dict[str, object]:
    """All audits of a run, for JSON."""
    passes = all(report.verdict.passes for report in reports)
    return {
        "verdict": "PASS" if passes else "FAIL",
        "audits": [report.as_dict() for report in reports],
    }


def _difference_row(report: EqualityReport, finding: Finding) -> tuple[str, ...]:
    head = (report.conditions.layout, f"{finding.index} ({finding.prompt_id})")
    difference = finding.comparison.difference
    if finding.error or difference is None:
        return (*head, f"failed: {finding.error}", *[""] * 7)
    return (
        *head,
        difference.kind.value,
        str(difference.position),
        _token(difference.reference_token),
        _token(difference.served_token),
        *_evidence_cells(finding.evidence),
        "yes" if finding.is_tie else "NO",
    )


def _evidence_cells(evidence: Evidence | None) -> tuple[str, str, str]:
    if evidence is None:
        return "", "", ""
    gap = max(evidence.reference_gap, evidence.served_gap)
    return f"{evidence.margin:.3e}", f"{gap:.3e}", f"{evidence.bound:.3e}"


def _token(token: int | None) -> str:
    return "(none)" if token is None else str(token)


def _finding_dict(finding: Finding) -> dict[str, object]:
    found = _plain(asdict(finding))
    assert isinstance(found, dict)
    evidence = finding.evidence
    if evidence is not None:
        found["evidence"] = {**asdict(evidence), "bound": evidence.bound}
    return {**found, "is_tie": finding.is_tie}


def _plain(value: object) -> object:
    """Enums as their values, down to the leaves."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
