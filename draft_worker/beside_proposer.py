"""Prompt look-up beside a draft model: per row, whichever is expected to be accepted longer.

A proposal is the model's tokens, then looked-up ones; either part may be all of it. Before every
step of the model the look-up gets its chance, so that it takes over where the text begins to
repeat; and a proposal that is hardly right as a whole any more ends there, for what would follow
is in vain. A row that is looked up at once is not fed: the model catches up when it is
needed. How good the two are, and how far the model's own probabilities can be trusted, is learned
from the tokens that were committed, of the look-up also where it was not proposed. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draft_worker.model_proposer import Drafting, ModelProposer
from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.choosing import ChoiceRules
from exspec.core.lookup import NgramIndex, ProposalPool, ProposalRecord
from exspec.core.sessions import Feed

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

MOST_LACKING = 128
"""A row that lacks so many tokens is fed though it was looked up, lest one pass take too long."""


@dataclass(slots=True)
class _Lane:
    """What is known of the row in one slot. Changed by `BesideProposer` only."""

    index: NgramIndex
    """Of the log at the last entry."""
    record: ProposalRecord
    num_fed: int = 0
    """Tokens of it that the model was fed, and of the proposal after it. The session counts all."""
    proposed: tuple[int, ...] = ()
    """The model's part of the last proposal."""
    chances: tuple[float, ...] = ()
    """How likely it thought the tokens were."""
    was_asked: bool = False
    """Whether the last entry wanted a proposal: tokens that follow are generated, no prompt."""

    def go_on(self, log: tuple[int, ...]) -> None:
        """Take in what was committed since the last entry, and judge by it."""
        num_known = len(self.index.tokens)
        if self.was_asked and list(log[:num_known]) == self.index.tokens:
            self.record.note_model(self.proposed, log[num_known:], self.chances)
            for token in log[num_known:]:
                found = self.index.look_up(1)
                if found is not None:
                    is_right = found.tokens == (token,)
                    self.record.note_look_up(found.match_length, is_right=is_right)
                self.index.append(token)
        self.index.follow(log)
        self.proposed = self.chances = ()

    def tail(
        self, num_tokens: int, drafted: Sequence[int] = (), chance: float = 1.0
    ) -> tuple[int, ...]:
        """What to end the proposal with after `drafted`; empty: the model is expected to do better.

        `num_tokens` more are wanted; what was drafted is all right with this chance.
        """
        found = self.index.look_up(num_tokens, drafted)
        if found is None:
            return ()
        record, tokens, match_length = self.record, found.tokens, found.match_length
        if record.look_up_length(match_length, len(tokens)) <= record.model_length(num_tokens):
            return ()
        return tokens[: record.worthwhile(match_length, len(tokens), chance)]

    def lacking(self, row: ProposalRow) -> ProposalRow:
        """The row with all that the model lacks of its log to be fed."""
        self.num_fed = min(self.num_fed, row.feed.start)
        return replace(row, feed=Feed(row.feed.slot, self.num_fed, row.log[self.num_fed :]))


class BesideProposer:
    """A model and the index of every row's log; owns how much of a log the model was not fed."""

    def __init__(
        self, model: ModelProposer, *, longest: int, shortest: int, least_chance: float = 0.0
    ) -> None:
        """Runs of `longest` to `shortest` tokens are looked up.

        The model goes on while all it proposed is right with a chance of at least `least_chance`.
        """
        self._model = model
        self._longest = longest
        self._shortest = shortest
        self._least_chance = least_chance
        self._pool = ProposalPool()
        self._lanes: dict[int, _Lane] = {}
        """By slot."""
        self.vocab_size = model.vocab_size
        self.num_slots = model.num_slots
        self.capacity = model.capacity

    def release(self, slot: int) -> None:
        """Forget a slot's log and KV."""
        self._lanes.pop(slot, None)
        self._model.release(slot)

    def open_choosing(self, rules: ChoiceRules) -> Choosing | None:
        """The model's; what is looked up is proposed whatever the rules."""
        return self._model.open_choosing(rules)

    def propose(self, rows: list[ProposalRow]) -> Proposals:
        """Look up, run the model for the rows that want it, look up again before each step."""
        tails = [self._open(row) for row in rows]
        asked: list[int] = []
        laid: list[ProposalRow] = []
        for i, row in enumerate(rows):
            full = self._lanes[row.feed.slot].lacking(row)
            if not tails[i]:
                asked.append(i)
                laid.append(full)
            elif len(full.feed.tokens) >= MOST_LACKING:
                asked.append(i)
                laid.append(replace(full, num_draft_tokens=0))
        asks = self._least_chance > 0
        answer = Proposals((), ())
        if laid:
            answer = self._model.propose(laid, self._tail, asks_chances=asks)
        return self._merge(rows, tails, asked, answer)

    def _open(self, row: ProposalRow) -> tuple[int, ...]:
        """Bring the row's lane up to its log; the whole proposal if it is looked up at once."""
        lane = self._lanes.get(row.feed.slot)
        if lane is None:
            index = NgramIndex(self._longest, self._shortest)
            lane = self._lanes[row.feed.slot] = _Lane(index, ProposalRecord(self._pool))
        lane.go_on(row.log)
        lane.was_asked = row.num_draft_tokens > 0
        return lane.tail(row.num_draft_tokens) if lane.was_asked else ()

    def _tail(self, row: ProposalRow, draft: Drafting) -> tuple[int, ...] | None:
        lane = self._lanes[row.feed.slot]
        chance = lane.record.draft_chance(draft.chances)
        found = lane.tail(row.num_draft_tokens - len(draft.tokens), draft.tokens, chance)
        if found:
            return found
        return () if chance < self._least_chance else None

    def _merge(
        self,
        rows: list[ProposalRow],
        tails: list[tuple[int, ...]],
        asked: list[int],
        answer: Proposals,
    ) -> Proposals:
        """What the model answered for the rows it was asked, among those it was not."""
        tokens, num_fed = list(tails), [0] * len(rows)
        num_looked_up = [len(tail) for tail in tails]
        failed = set[int]()
        for place, i in enumerate(asked):
            lane = self._lanes[rows[i].feed.slot]
            if place in answer.failed_rows:
                failed.add(i)
                continue
            num_fed[i] = answer.num_fed[place]
            lane.num_fed = len(rows[i].log) + num_fed[i]
            if not tails[i]:
                tokens[i] = answer.tokens[place]
                num_looked_up[i] = answer.num_looked_up_of(place)
                lane.proposed = tokens[i][: len(tokens[i]) - num_looked_up[i]]
                lane.chances = answer.chances[place] if answer.chances else ()
        return replace(
            answer,
            tokens=tuple(tokens),
            num_fed=tuple(num_fed),
            failed_rows=frozenset(failed),
            num_looked_up=tuple(num_looked_up),
        )
