"""Drafting ahead: what is drafted beyond the proposals, and what of it the next entry can use.

While it would be idle, a draft worker goes on as if all it proposed were accepted and the target's
bonus token were its own next choice. This is the bookkeeping: which tokens are known, which of them
are fed. Pure; when there is time for a step is the servicer's business, the step the drafter's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.acceptance import common_prefix_length
from exspec.core.choosing import ChoiceRules
from exspec.core.ids import SequenceId
from exspec.core.sessions import Feed

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing


@dataclass(slots=True)
class _Lead:
    """One sequence: its log and the draft's own choices after it. Changed by `AheadDrafts` only.

    The last token is known but not fed: `num_fed < len(tokens)`, always.
    """

    slot: int
    tokens: list[int]
    """The committed log at the last entry, then each choice given everything before it."""
    num_fed: int
    """How many of them the slot really holds, from position 0."""
    num_wanted: int
    """Drafting ahead ends at this many tokens."""
    first_ahead: int
    """From here on the tokens were drafted ahead and have not been proposed."""
    choosing: Choosing | None
    """What the choices after the log were made by."""

    def row(self, num_draft_tokens: int) -> ProposalRow:
        """Feed what is known and not fed, and go on."""
        tokens = tuple(self.tokens)
        feed = Feed(self.slot, self.num_fed, tokens[self.num_fed :])
        return ProposalRow(feed, tokens, num_draft_tokens, self.choosing)


@dataclass(frozen=True, slots=True)
class Drafted:
    """An entry was answered: it stood at `end`, `num_proposed` tokens were proposed after it.

    `new_tokens` were computed for it, the others known before. `num_fed` counts all tokens of the
    sequence that the slot holds now.
    """

    end: int
    num_proposed: int
    new_tokens: tuple[int, ...]
    num_fed: int


class AheadDrafts:
    """Owns what is known of every sequence beyond its log, and how far drafting ahead may go.

    Only for a proposer that chains: every token it proposes is what it would propose first if the
    tokens before it were in the log. The sessions stay as they are without it, so that what an
    entry is answered is the same: this owner only knows of tokens the slots hold on top.
    """

    def __init__(self, num_ahead: int, capacity: int) -> None:
        """`num_ahead` tokens beyond what was proposed; 0: nothing is kept, rows stay as they are.

        `capacity` is what a slot can hold.
        """
        self.num_ahead = num_ahead
        self.num_drafted = 0
        """Tokens drafted ahead."""
        self.num_proposed = 0
        """Those of them that became proposals."""
        self.num_wasted = 0
        """Those that were dropped: a wrong guess, or the sequence ended. The rest was committed."""
        self._capacity = capacity
        self._leads: dict[SequenceId, _Lead] = {}

    @property
    def has_room(self) -> bool:
        """Whether there is a step to do."""
        return any(_has_room(lead) for lead in self._leads.values())

    def resume(self, sequence_id: SequenceId, row: ProposalRow) -> ProposalRow:
        """What is left to do of an entry's row: feed less, propose fewer (0: all is known).

        The answer's log goes beyond the row's by what is known after it already.
        """
        if not self.num_ahead:
            return row
        lead = self._leads.get(sequence_id)
        if lead is None:
            tokens = list(row.log)
            num_known = len(tokens)
            lead = _Lead(row.feed.slot, tokens, row.feed.start, num_known, num_known, row.choosing)
            self._leads[sequence_id] = lead
        self._reconcile(lead, row)
        num_known = len(lead.tokens) - len(row.log)
        return lead.row(max(0, row.num_draft_tokens - num_known))

    def settle(self, sequence_id: SequenceId, drafted: Drafted) -> None:
        """A resumed row was answered; from its proposals on there may be drafted ahead."""
        lead = self._leads.get(sequence_id)
        if lead is None:
            return
        end = drafted.end + drafted.num_proposed
        num_used = min(end, len(lead.tokens)) - max(drafted.end, lead.first_ahead)
        self.num_proposed += max(0, num_used)
        lead.tokens += drafted.new_tokens
        lead.num_fed = min(drafted.num_fed, len(lead.tokens) - 1)
        lead.first_ahead = max(end, lead.first_ahead)
        # The last token is not fed, so what is known may be one longer than the slot.
        lead.num_wanted = min(end + self.num_ahead, self._capacity + 1)

    def next_step(self) -> dict[SequenceId, ProposalRow]:
        """One token more for every sequence that has room."""
        return {name: lead.row(1) for name, lead in self._leads.items() if _has_room(lead)}

    def advance(self, names: list[SequenceId], proposals: Proposals) -> None:
        """A step is done; a row that got no token (see `Proposals`) takes no more."""
        for name, tokens in zip(names, proposals.tokens, strict=True):
            lead = self._leads[name]
            if not tokens:
                lead.num_wanted = len(lead.tokens)
                continue
            lead.num_fed = len(lead.tokens)
            lead.tokens += tokens
            self.num_drafted += 1

    def drop(self, sequence_id: SequenceId) -> None:
        """The sequence is forgotten."""
        lead = self._leads.pop(sequence_id, None)
        if lead is not None:
            self.num_wasted += max(0, len(lead.tokens) - lead.first_ahead)

    def _reconcile(self, lead: _Lead, row: ProposalRow) -> None:
        """Keep the longest common prefix with the row's log, and all if that is the whole log.

        Not what other rules than the row's had chosen after it.
        """
        # The session found the tokens before `start` equal, and a lead begins as its session does.
        start = row.feed.start
        num_kept = start + common_prefix_length(lead.tokens[start:], row.log[start:])
        is_as_chosen = _rules_of(lead.choosing) == _rules_of(row.choosing)
        lead.choosing = row.choosing
        if num_kept == len(row.log) and is_as_chosen:
            return
        self.num_wasted += max(0, len(lead.tokens) - max(num_kept, lead.first_ahead))
        lead.tokens = list(row.log)
        lead.num_fed = min(lead.num_fed, num_kept, len(row.log) - 1)
        lead.first_ahead = len(row.log)


def _has_room(lead: _Lead) -> bool:
    return len(lead.tokens) < lead.num_wanted


def _rules_of(choosing: Choosing | None) -> ChoiceRules | None:
    return None if choosing is None else choosing.rules
