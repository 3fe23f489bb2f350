"""The equality audit: answers and references of many prompts, judged. Pure; no torch, no network.

Whoever runs it brings the answers (a load generator) and the judge (`reference_runs`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from exspec.audit.compare import Comparison, Difference, DifferenceKind, Evidence, compare
from exspec.core.choosing import ChoiceRules
from exspec.core.generation import SpeculationStats


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as it was sent, in token ids. `rules` None: the best logit wins."""

    prompt_id: str
    category: str
    prompt_tokens: tuple[int, ...]
    rules: ChoiceRules | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: all token ids, uncut. `error` is empty unless the request failed."""

    token_ids: tuple[int, ...]
    speculation: SpeculationStats
    error: str = ""


class Judge(Protocol):
    """Looks at the logits behind a difference."""

    def weigh(self, question: Question, common: Sequence[int], difference: Difference) -> Evidence:
        """Evidence at the position after the question's prompt and the `common` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One prompt. `evidence` is there where two tokens differ; `error` where the request failed."""

    index: int
    prompt_id: str
    category: str
    num_prompt_tokens: int
    comparison: Comparison
    evidence: Evidence | None = None
    error: str = ""

    @property
    def is_exact(self) -> bool:
        """Served, and token for token the reference."""
        return not self.error and self.comparison.is_exact

    @property
    def is_tie(self) -> bool:
        """A difference that rounding alone explains."""
        return not self.error and self.evidence is not None and self.evidence.is_tie


@dataclass(frozen=True, slots=True)
class Verdict:
    """All prompts. It passes if every prompt was served and no difference is more than a tie."""

    findings: tuple[Finding, ...]
    speculation: SpeculationStats

    @property
    def num_exact(self) -> int:
        """Prompts answered token for token."""
        return sum(finding.is_exact for finding in self.findings)

    @property
    def exact_match(self) -> float:
        """Their share."""
        return self.num_exact / len(self.findings)

    @property
    def partial_match(self) -> float:
        """Mean share of the reference before the first difference; a failed request has 0."""
        shares = (
            0.0 if finding.error else finding.comparison.partial_match for finding in self.findings
        )
        return sum(shares) / len(self.findings)

    @property
    def differences(self) -> tuple[Finding, ...]:
        """Prompts that were not answered token for token, failed requests among them."""
        return tuple(finding for finding in self.findings if not finding.is_exact)

    @property
    def num_ties(self) -> int:
        """Differences below the rounding bound."""
        return sum(finding.is_tie for finding in self.differences)

    @property
    def passes(self) -> bool:
        """All exact, or only ties."""
        return self.num_ties == len(self.differences)


def judge_answers(
    questions: Sequence[Question],
    references: Sequence[tuple[int, ...]],
    answers: Sequence[Answer],
    stop_token_ids: Collection[int],
    judge: Judge,
) -> Verdict:
    """Compare every answer with its reference, and weigh every difference.

    Raises:
        ValueError: no questions, or not one reference and one answer to each.
    """
    if not questions:
        raise ValueError("an audit needs at least one prompt")
    findings: list[Finding] = []
    for index, (question, reference, answer) in enumerate(
        zip(questions, references, answers, strict=True)
    ):
        comparison = compare(reference, answer.token_ids, stop_token_ids)
        findings.append(
            Finding(
                index=index,
                prompt_id=question.prompt_id,
                category=question.category,
                num_prompt_tokens=len(question.prompt_tokens),
                comparison=comparison,
                evidence=_weigh(question, reference, comparison, answer.error, judge),
                error=answer.error,
            )
        )
    return Verdict(tuple(findings), _sum([answer.speculation for answer in answers]))


def _weigh(
    question: Question,
    reference: tuple[int, ...],
    comparison: Comparison,
    error: str,
    judge: Judge,
) -> Evidence | None:
    difference = comparison.difference
    if error or difference is None or difference.kind is not DifferenceKind.OTHER_TOKEN:
        return None
    return judge.weigh(question, reference[: difference.position], difference)


def _sum(stats: Sequence[SpeculationStats]) -> SpeculationStats:
    return SpeculationStats(
        sum(one.num_rounds for one in stats),
        sum(one.num_draft_tokens for one in stats),
        sum(one.num_accepted_tokens for one in stats),
        num_looked_up_tokens=sum(one.num_looked_up_tokens for one in stats),
        num_accepted_looked_up_tokens=sum(one.num_accepted_looked_up_tokens for one in stats),
    )
