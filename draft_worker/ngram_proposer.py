"""Proposals without a model: what followed the last few tokens when they last occurred.

Prompt look-up decoding (Saxena 2023): cheap, and good where the answer repeats the prompt.
"""

from __future__ import annotations

from draft_worker.proposer import ProposalRow, Proposals
from exspec.core.choosing import ChoiceRules

NGRAM_CAPACITY = 1 << 20
NGRAM_VOCAB_SIZE = 1 << 32
"""Any id of the wire fits."""


class NgramProposer:
    """Looks up the longest run of `longest` to `shortest` last tokens, latest occurrence first."""

    def __init__(self, *, num_slots: int, longest: int, shortest: int) -> None:
        self.num_slots = num_slots
        self.capacity = NGRAM_CAPACITY
        self.vocab_size = NGRAM_VOCAB_SIZE
        self._longest = longest
        self._shortest = min(shortest, longest)

    def release(self, slot: int) -> None:
        """Nothing is kept besides the log itself."""

    def open_choosing(self, rules: ChoiceRules) -> None:
        """What occurred before is proposed, whatever the rules."""

    def propose(self, rows: list[ProposalRow]) -> Proposals:
        """Rows whose last tokens did not occur before get no proposals."""
        tokens = tuple(self._look_up(row.log, row.num_draft_tokens) for row in rows)
        return Proposals(tokens=tokens, num_fed=(0,) * len(rows))

    def _look_up(self, log: tuple[int, ...], num_draft_tokens: int) -> tuple[int, ...]:
        for size in range(self._longest, self._shortest - 1, -1):
            end = _last_occurrence(log, size)
            if end is not None:
                return log[end : end + num_draft_tokens]
        return ()


def _last_occurrence(log: tuple[int, ...], size: int) -> int | None:
    """Where the latest earlier occurrence of the last `size` tokens ends, or None."""
    if len(log) <= size:
        return None
    pattern = log[-size:]
    for end in range(len(log) - 1, size - 1, -1):
        if log[end - 1] == pattern[-1] and log[end - size : end] == pattern:
            return end
    return None
