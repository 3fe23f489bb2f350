"""Proposals from a model: one catch-up pass, then one token per row and pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from draft_worker.proposer import ProposalRow, Proposals
from draft_worker.rules import SampleMethod, draft_rules, ever_fewer
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import CallerError, InvalidRequestError
from exspec.engine.rows import PassOutput, PassRunner, RowInput

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Drafting:
    """A row's proposal while it is made. Changed by `ModelProposer` only."""

    tokens: list[int] = field(default_factory=list[int])
    tail: tuple[int, ...] | None = None
    """What it ends with; None: it goes on."""


class Companion(Protocol):
    """Who has a say in every proposal of a model."""

    def tail(self, row: ProposalRow, drafted: Sequence[int]) -> tuple[int, ...] | None:
        """What to end the proposal with, which may be nothing more; None: it goes on.

        Asked before every pass but a row's first.
        """
        ...

    def rivals(self, row: ProposalRow) -> tuple[int, ...]:
        """Other tokens that may come next than the choice the coming pass will make.

        Asked of greedy rows only.
        """
        ...

    def settle(self, row: ProposalRow, choice: int, chances: tuple[float, ...]) -> int:
        """The token that is proposed: the model's choice or a rival, in view of their chances.

        `chances` are of the choice, then of the rivals; empty if the model did not say.
        """
        ...


class ModelProposer:
    """Proposals of a draft model that keeps its own KV across rounds."""

    def __init__(self, runner: PassRunner, method: SampleMethod = SampleMethod.SHARED) -> None:
        self._runner = runner
        self._method = method
        self._told = set[str]()
        self.vocab_size = runner.facts.vocab_size
        self.num_slots = runner.num_slots
        self.capacity = runner.capacity

    def release(self, slot: int) -> None:
        """Forget a slot's KV."""
        self._runner.release(slot)

    def open_choosing(self, rules: ChoiceRules) -> Choosing | None:
        """See `Proposer`; a field that could not be followed is logged, the first time."""
        for fewer in ever_fewer(draft_rules(rules, self._method), self.vocab_size):
            if fewer.is_plain:
                return None
            try:
                return self._runner.open_choosing(fewer)
            except CallerError as error:
                self._tell(error)
            except Exception:  # whatever it was, drafts may be made without
                logger.exception("draft.rules_failed")
        return None

    def _tell(self, error: CallerError) -> None:
        field = error.field if isinstance(error, InvalidRequestError) else ""
        if field not in self._told:
            self._told.add(field)
            logger.warning("draft.rules_not_followed field=%s reason=%.200s", field, error)

    def propose(self, rows: list[ProposalRow], companion: Companion | None = None) -> Proposals:
        """The first pass feeds what the rows lack; every later one feeds the token before.

        A row ends early at a token the model gives no finite numbers for, or where its rules leave
        no token, or as its companion says (None: the model alone).
        """
        drafts = [Drafting() for _ in rows]
        failed = set[int]()
        align_seconds = forward_seconds = 0.0
        num_moved_rows = 0
        for step in range(max(1, *(row.num_draft_tokens for row in rows))):
            active = [
                i for i, row in enumerate(rows) if _takes_part(row, drafts[i], step, companion)
            ]
            if not active:
                break
            output = self._runner.forward(
                [_row_input(rows[i], drafts[i].tokens, companion) for i in active]
            )
            for place, i in enumerate(active):
                drafts[i].tokens += _settled(rows[i], output, place, companion)
                if not step and place in output.failed_rows:
                    failed.add(i)
            align_seconds += output.align_seconds
            forward_seconds += output.forward_seconds
            num_moved_rows += output.num_moved_rows
        return Proposals(
            tokens=tuple((*draft.tokens, *(draft.tail or ())) for draft in drafts),
            num_fed=tuple(max(0, len(draft.tokens) - 1) for draft in drafts),
            align_seconds=align_seconds,
            forward_seconds=forward_seconds,
            num_moved_rows=num_moved_rows,
            failed_rows=frozenset(failed),
            num_looked_up=tuple(len(draft.tail or ()) for draft in drafts),
        )


def _takes_part(row: ProposalRow, draft: Drafting, step: int, companion: Companion | None) -> bool:
    """All rows are fed; those that got a token in every pass, want more and have no tail go on."""
    if step == 0:
        return True
    if len(draft.tokens) != step or row.num_draft_tokens <= step or draft.tail is not None:
        return False
    if companion is not None:
        draft.tail = companion.tail(row, draft.tokens)
    return draft.tail is None


def _settled(
    row: ProposalRow, output: PassOutput, place: int, companion: Companion | None
) -> tuple[int, ...]:
    """What a pass adds to the proposal: one token or none."""
    choices = output.choices[place]
    if companion is None or not choices:
        return choices
    chances = output.chances[place] if output.chances else ()
    return (companion.settle(row, choices[0], chances),)


def _row_input(row: ProposalRow, drafted: list[int], companion: Companion | None) -> RowInput:
    if drafted:
        start, tokens, num_choices = len(row.log) + len(drafted) - 1, (drafted[-1],), 1
    else:
        start, tokens = row.feed.start, row.feed.tokens
        num_choices = min(1, row.num_draft_tokens)
    needs_history = row.choosing is not None and row.choosing.rules.needs_history
    history = (*row.log, *drafted)[:start] if needs_history else ()
    is_asked = companion is not None and row.is_greedy and num_choices > 0
    return RowInput(
        row.feed.slot,
        start,
        tokens,
        num_choices,
        row.choosing,
        history,
        wants_chance=is_asked,
        rivals=companion.rivals(row) if companion is not None and is_asked else (),
    )
