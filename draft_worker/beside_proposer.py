"""Prompt look-up beside a draft model: per row, whichever is expected to do better.

A proposal is the model's tokens, then looked-up ones; either part may be all of it. Before every
step of the model the look-up gets its chance, so that it takes over where the text begins to
repeat: if its next token is right more often than the model's, and all of it is expected to be
accepted longer. At every step the model's choice is weighed against what followed its last tokens
elsewhere in the text. A proposal that is hardly right as a whole any more ends there, for what
would follow is in vain. A row that is looked up at once is not fed: the model catches up when it is
needed. How good the two are, and how far their probabilities can be trusted, is learned from the
tokens that were committed, of the look-up also where it was not proposed. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from draft_worker.model_proposer import ModelProposer
from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.choosing import ChoiceRules
from exspec.core.copying import NO_COPIES, Copies, CopyGates, Mixed, copies_of
from exspec.core.lookup import NgramIndex, Occurrence, winner
from exspec.core.proposal_records import ProposalPool, ProposalRecord
from exspec.core.sessions import Feed

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

LEAST_LOOK_UP_CHANCE = 0.05
"""Looked-up tokens that are right with less than this chance are not proposed: they cost no draft,
but their share of a verify."""
MODEL_ADVANTAGE = 1.1
"""The model's rate is of places where look-up promised little: where it promises more, the model,
weighed against the same copies, is right more often than that."""
MOST_LACKING = 128
"""A row that lacks so many tokens is fed though it was looked up, lest one pass take too long."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A token the model proposed, and how it was come to; None: the model did not say."""

    token: int
    mixed: Mixed | None


@dataclass(slots=True)
class _Lane:
    """What is known of the row in one slot. Changed by `BesideProposer` only."""

    index: NgramIndex
    """Of the log at the last entry."""
    record: ProposalRecord
    gates: CopyGates
    """Of all rows."""
    num_fed: int = 0
    """Tokens of it that the model was fed, and of the proposal after it. The session counts all."""
    chosen: list[_Chosen] = field(default_factory=list[_Chosen])
    """The model's part of the last proposal."""
    chance: float = 1.0
    """That all of it is right."""
    occurrences: list[Occurrence] = field(default_factory=list[Occurrence])
    """Where the end of log and proposal occurred before."""
    copies: Copies = NO_COPIES
    """What the model's next token is weighed against."""
    was_asked: bool = False
    """Whether the last entry wanted a proposal: tokens that follow are generated, no prompt."""

    def go_on(self, log: tuple[int, ...]) -> None:
        """Take in what was committed since the last entry, and judge by it."""
        came = self.index.beyond(log)
        if came is None:
            self.index.clear()
        elif self.was_asked:
            self._judge_model(came)
        for token in log[len(self.index.tokens) :]:
            if came is not None and self.was_asked:
                self._judge_look_up(token)
            self.index.append(token)
        self.chosen.clear()
        self.chance = 1.0

    def _judge_look_up(self, came: int) -> None:
        """What would have been looked up, whether it was proposed or not."""
        occurrences = self.index.occurrences()
        if occurrences:
            token, match = winner(occurrences)
            self.record.note_look_up(match, is_right=token == came)

    def _judge_model(self, came: Sequence[int]) -> None:
        """Its tokens up to the first wrong one; of those behind it nothing is known."""
        if came and not self.chosen:
            self.record.note_no_model()
        for chosen, token in zip(self.chosen, came, strict=False):
            is_right = chosen.token == token
            mixed = chosen.mixed
            self.record.note_model(None if mixed is None else mixed.chance, is_right=is_right)
            if mixed is not None:
                self.gates.note(mixed, token)
            if not is_right:
                return

    def tail(
        self, num_tokens: int, drafted: Sequence[int] = (), *, is_end: bool = False
    ) -> tuple[int, ...]:
        """What to end the proposal with after `drafted`; empty: the model goes on.

        That is if its next token is right more often than the first looked-up one, or its proposal
        is expected to be accepted longer. `num_tokens` more are wanted; `is_end`: the model will
        not be asked for any.
        """
        self.occurrences = self.index.occurrences(drafted)
        model_rate = min(1.0, MODEL_ADVANTAGE * self.record.model_rate)
        if not self.occurrences or not num_tokens:
            return ()
        if not is_end and self.record.look_up_rate(winner(self.occurrences)[1]) <= model_rate:
            return ()
        found = self.index.look_up(num_tokens, drafted)
        rates = [self.record.look_up_rate(match) for match in found.matches]
        chances = list(accumulate(rates, mul))
        if not is_end and sum(chances) <= sum(accumulate([model_rate] * num_tokens, mul)):
            return ()
        num_likely = sum(self.chance * chance >= LEAST_LOOK_UP_CHANCE for chance in chances)
        return found.tokens[:num_likely]

    def choose(self, choice: int, chances: tuple[float, ...]) -> int:
        """The model's next token: its own choice, or one of the copies."""
        mixed = None
        if chances:
            tokens = (choice, *self.copies.shares)
            by_token = dict(zip(tokens, chances, strict=True))
            mixed = self.gates.mix(choice, by_token, self.copies)
            self.chance *= self.record.chance_of(mixed.chance)
        token = choice if mixed is None else mixed.token
        self.chosen.append(_Chosen(token, mixed))
        return token

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
        self._gates = CopyGates()
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
        answer = self._model.propose(laid, self) if laid else Proposals((), ())
        return self._merge(rows, tails, asked, answer)

    def _open(self, row: ProposalRow) -> tuple[int, ...]:
        """Bring the row's lane up to its log; the whole proposal if it is looked up at once."""
        lane = self._lanes.get(row.feed.slot)
        if lane is None:
            index = NgramIndex(self._longest, self._shortest)
            lane = _Lane(index, ProposalRecord(self._pool), self._gates)
            self._lanes[row.feed.slot] = lane
        lane.go_on(row.log)
        lane.was_asked = row.num_draft_tokens > 0
        return lane.tail(row.num_draft_tokens) if lane.was_asked else ()

    def tail(self, row: ProposalRow, drafted: Sequence[int]) -> tuple[int, ...] | None:
        """See `Companion`: what is looked up, or an early end."""
        lane = self._lanes[row.feed.slot]
        is_end = lane.chance < self._least_chance
        found = lane.tail(row.num_draft_tokens - len(drafted), drafted, is_end=is_end)
        return found if found or is_end else None

    def rivals(self, row: ProposalRow) -> tuple[int, ...]:
        """See `Companion`: what followed earlier occurrences of the last tokens."""
        lane = self._lanes[row.feed.slot]
        lane.copies = copies_of(lane.occurrences)
        return tuple(lane.copies.shares)

    def settle(self, row: ProposalRow, choice: int, chances: tuple[float, ...]) -> int:
        """See `Companion`: the likeliest of the mixture."""
        return self._lanes[row.feed.slot].choose(choice, chances)

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
        return replace(
            answer,
            tokens=tuple(tokens),
            num_fed=tuple(num_fed),
            failed_rows=frozenset(failed),
            num_looked_up=tuple(num_looked_up),
        )
