"""Proposals from a model: one catch-up pass, then one token per row and pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draft_worker.proposer import ProposalRow, Proposals
from draft_worker.rules import SampleMethod, draft_rules, ever_fewer
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import CallerError, InvalidRequestError
from exspec.engine.rows import PassRunner, RowInput

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

logger = logging.getLogger(__name__)

Tail = Callable[[ProposalRow, Sequence[int]], tuple[int, ...]]
"""What to end a row's proposal with, after the tokens drafted so far; empty: it goes on."""


def no_tail(row: ProposalRow, drafted: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG001
    """The model alone."""
    return ()


@dataclass(slots=True)
class _Draft:
    """A row's proposal while it is made."""

    tokens: list[int] = field(default_factory=list[int])
    tail: tuple[int, ...] = ()


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

    def propose(self, rows: list[ProposalRow], tail: Tail = no_tail) -> Proposals:
        """The first pass feeds what the rows lack; every later one feeds the token before.

        A row ends early at a token the model gives no finite numbers for, or where its rules leave
        no token; or with what `tail` gives it before a later pass.
        """
        drafts = [_Draft() for _ in rows]
        failed = set[int]()
        align_seconds = forward_seconds = 0.0
        num_moved_rows = 0
        for step in range(max(1, *(row.num_draft_tokens for row in rows))):
            active = [i for i, row in enumerate(rows) if _takes_part(row, drafts[i], step, tail)]
            if not active:
                break
            output = self._runner.forward([_row_input(rows[i], drafts[i].tokens) for i in active])
            for place, (i, choices) in enumerate(zip(active, output.choices, strict=True)):
                drafts[i].tokens += choices
                if not step and place in output.failed_rows:
                    failed.add(i)
            align_seconds += output.align_seconds
            forward_seconds += output.forward_seconds
            num_moved_rows += output.num_moved_rows
        return Proposals(
            tokens=tuple((*draft.tokens, *draft.tail) for draft in drafts),
            num_fed=tuple(max(0, len(draft.tokens) - 1) for draft in drafts),
            align_seconds=align_seconds,
            forward_seconds=forward_seconds,
            num_moved_rows=num_moved_rows,
            failed_rows=frozenset(failed),
            num_looked_up=tuple(len(draft.tail) for draft in drafts),
        )


def _takes_part(row: ProposalRow, draft: _Draft, step: int, tail: Tail) -> bool:
    """All rows are fed; those that got a token in every pass, want more and have no tail go on."""
    if step == 0:
        return True
    if len(draft.tokens) != step or row.num_draft_tokens <= step or draft.tail:
        return False
    draft.tail = tail(row, draft.tokens)
    return not draft.tail


def _row_input(row: ProposalRow, drafted: list[int]) -> RowInput:
    if drafted:
        start, tokens, num_choices = len(row.log) + len(drafted) - 1, (drafted[-1],), 1
    else:
        start, tokens = row.feed.start, row.feed.tokens
        num_choices = min(1, row.num_draft_tokens)
    needs_history = row.choosing is not None and row.choosing.rules.needs_history
    history = (*row.log, *drafted)[:start] if needs_history else ()
    return RowInput(row.feed.slot, start, tokens, num_choices, row.choosing, history)
