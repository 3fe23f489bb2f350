"""A draft model's choice, weighed against the tokens that followed earlier occurrences of the last.

A mixture as in pointer networks and caches of language models (Merity et al., arXiv 1609.07843;
Grave et al., arXiv 1612.04426): a token is likely because the model thinks so, or because the text
repeats itself. How much either counts depends on how long the text has already repeated itself,
and is learned from the tokens that came. Arithmetic on token ids; nothing else lives here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exspec.core.lookup import Occurrence, votes_for

MOST_RIVALS = 16
"""Tokens that are weighed against the model's choice."""
_FIRST_GATES = (0.1, 0.3, 0.5, 0.6, 0.65, 0.7, 0.75, 0.85)
"""How much copying counts after matches of 1, 2, … tokens, before anything was seen."""
_FIRST_WEIGHT = 50.0
"""Tokens that a first guess counts as."""
_MEMORY = 0.998
"""What a token counts of the next one."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Tokens that may be copied, their shares (sum 1) and the longest match before any of them.

    At most `MOST_RIVALS`, the largest shares; then their sum is less than 1.
    """

    shares: Mapping[int, float]
    match_length: int


NO_COPIES = Copies({}, 0)


def copies_of(occurrences: Sequence[Occurrence]) -> Copies:
    """From where the last tokens occurred before; see `NgramIndex.occurrences`."""
    if not occurrences:
        return NO_COPIES
    votes = votes_for(occurrences)
    total = sum(votes.values())
    most = sorted(votes.items(), key=lambda item: -item[1])[:MOST_RIVALS]
    longest = max(one.match_length for one in occurrences)
    return Copies({token: vote / total for token, vote in most}, longest)


@dataclass(frozen=True, slots=True)
class Mixed:
    """One choice: `token` with its `chance`, and what it was weighed from, to learn by.

    `chances` are the model's of the copies' tokens and of its own choice.
    """

    token: int
    chance: float
    copies: Copies
    chances: Mapping[int, float]


@dataclass(slots=True)
class CopyGates:
    """How much copying counts, by the length of the match, of all rows. Sizes are in tokens."""

    copied: list[float] = field(default_factory=lambda: [0.0] * len(_FIRST_GATES))
    """Tokens that came by copying, rather than as the model thought."""
    seen: list[float] = field(default_factory=lambda: [0.0] * len(_FIRST_GATES))

    def mix(self, choice: int, chances: Mapping[int, float], copies: Copies) -> Mixed:
        """The likeliest of the model's `choice` and the copies; `chances` are the model's."""
        gate = self._gate(copies.match_length)
        best, best_chance = choice, 0.0
        for token in (choice, *copies.shares):
            chance = (1 - gate) * chances.get(token, 0.0) + gate * copies.shares.get(token, 0.0)
            if chance > best_chance:
                best, best_chance = token, chance
        return Mixed(best, best_chance, copies, chances)

    def note(self, mixed: Mixed, came: int) -> None:
        """A token came where this choice was made: by how much was it copying? (EM, one step.)"""
        copies = mixed.copies
        if not copies.match_length:
            return
        gate = self._gate(copies.match_length)
        copied = gate * copies.shares.get(came, 0.0)
        whole = copied + (1 - gate) * mixed.chances.get(came, 0.0)
        place = _place(copies.match_length)
        self.copied[place] = _MEMORY * self.copied[place] + (copied / whole if whole else 0.0)
        self.seen[place] = _MEMORY * self.seen[place] + 1

    def _gate(self, match_length: int) -> float:
        """Leans on its first guess for ever: near 0 or 1 it would hardly get away from there."""
        if not match_length:
            return 0.0
        place = _place(match_length)
        copied = self.copied[place] + _FIRST_WEIGHT * _FIRST_GATES[place]
        return copied / (self.seen[place] + _FIRST_WEIGHT)


def _place(match_length: int) -> int:
    return min(match_length, len(_FIRST_GATES)) - 1
