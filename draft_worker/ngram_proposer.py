"""Proposals without a model: what followed the last few tokens where they occurred before.

Prompt look-up decoding (Saxena 2023): cheap, and good where the answer repeats the prompt.
"""

from __future__ import annotations

from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.choosing import ChoiceRules
from exspec.core.lookup import NgramIndex

NGRAM_CAPACITY = 1 << 20
NGRAM_VOCAB_SIZE = 1 << 32
"""Any id of the wire fits."""


class NgramProposer:
    """Looks up runs of `longest` to `shortest` last tokens; see `NgramIndex` for what wins."""

    def __init__(self, *, num_slots: int, longest: int, shortest: int) -> None:
        self.num_slots = num_slots
        self.capacity = NGRAM_CAPACITY
        self.vocab_size = NGRAM_VOCAB_SIZE
        self._longest = longest
        self._shortest = shortest
        self._indices: dict[int, NgramIndex] = {}
        """By slot."""

    def release(self, slot: int) -> None:
        """Forget a slot's log."""
        self._indices.pop(slot, None)

    def open_choosing(self, rules: ChoiceRules) -> None:
        """What occurred before is proposed, whatever the rules."""

    def propose(self, rows: list[ProposalRow]) -> Proposals:
        """Rows whose last tokens did not occur before get no proposals."""
        tokens = tuple(self._look_up(row) for row in rows)
        num_looked_up = tuple(len(found) for found in tokens)
        return Proposals(tokens, num_fed=(0,) * len(rows), num_looked_up=num_looked_up)

    def _look_up(self, row: ProposalRow) -> tuple[int, ...]:
        index = self._indices.get(row.feed.slot)
        if index is None:
            index = self._indices[row.feed.slot] = NgramIndex(self._longest, self._shortest)
        index.follow(row.log)
        return index.look_up(row.num_draft_tokens).tokens
