"""How often look-ups and a draft model were right, by row and over all rows.

So that whichever is expected to do better can be proposed, and no longer than pays.
Arithmetic on counts; nothing else lives here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from exspec.core.lookup import MOST_MATCHED, Match

_LEAST = (1, 2, 3, 4, 6, 8, 12, MOST_MATCHED)
"""Match lengths from one of these up to the next share a record."""
_FIRST_OF_LENGTH = (0.4, 0.7, 0.8, 0.85, 0.87, 0.9, 0.93, 0.95)
"""How often a token is right that all voted for, after matches of these lengths, before anything
was seen."""
_FIRST_OF_SHARE = (0.15, 0.38, 0.6, 0.85, 1.0)
"""What is left of that where the votes were for it to less than 1/4, 1/2, 3/4, not all, all."""
_FIRST_MODEL_GUESS = 0.4
_NUM_CHANCES = 10
"""Equal parts of [0, 1]: tokens whose probabilities are in the same part share a record."""
_FIRST_CHANCE_GUESS, _FIRST_CHANCE_WEIGHT = 0.98, 5.0
"""High, whatever the model thinks: nothing is cut short before it was found to be in vain."""
_FIRST_WEIGHT = 10.0
"""Tokens that a guess counts as."""
_POOL_MEMORY = 0.998
"""What a token counts of the next one in the record of all rows."""
_ROW_MEMORY = 0.97
"""The same in a row's own."""
_POOL_FADING = 0.998
"""What is left of what the record of all rows has beyond its guess, after a proposal of a row that
the model had no part in: one that is never asked would never be found to have got better."""
_ROW_FADING = 0.99
"""The same of a row's own."""
_LOOK_UP_WEIGHT, _MODEL_WEIGHT = 10.0, 30.0
"""Tokens of its own after which a row's record counts as much as that of all rows."""


@dataclass(slots=True)
class _Rate:
    """How often a token was right; what is older counts less."""

    num_right: float = 0.0
    num_seen: float = 0.0

    def note(self, memory: float, *, is_right: bool) -> None:
        self.num_right = memory * self.num_right + is_right
        self.num_seen = memory * self.num_seen + 1

    def fade(self, memory: float, first: _Rate) -> None:
        """Nothing was seen: go back towards what it was at first."""
        self.num_right = memory * self.num_right + (1 - memory) * first.num_right
        self.num_seen = memory * self.num_seen + (1 - memory) * first.num_seen

    def leaning_on(self, prior: float, weight: float) -> float:
        """The rate, had `weight` more tokens been right as often as `prior`."""
        return (weight * prior + self.num_right) / (weight + self.num_seen)


def _first_look_ups() -> list[_Rate]:
    guesses = [
        of_length * of_share for of_length in _FIRST_OF_LENGTH for of_share in _FIRST_OF_SHARE
    ]
    return [_Rate(_FIRST_WEIGHT * guess, _FIRST_WEIGHT) for guess in guesses]


def _first_chances() -> list[_Rate]:
    first = _FIRST_CHANCE_GUESS * _FIRST_CHANCE_WEIGHT
    return [_Rate(first, _FIRST_CHANCE_WEIGHT) for _ in range(_NUM_CHANCES)]


def _first_model() -> _Rate:
    return _Rate(_FIRST_WEIGHT * _FIRST_MODEL_GUESS, _FIRST_WEIGHT)


@dataclass(slots=True)
class ProposalPool:
    """The record of all rows; rows of which little is known lean on it. Changed by rows only."""

    look_ups: list[_Rate] = field(default_factory=_first_look_ups)
    model: _Rate = field(default_factory=_first_model)
    chances: list[_Rate] = field(default_factory=_first_chances)
    """Of the model's tokens, by how likely they were taken to be."""


class ProposalRecord:
    """Owns what one row showed: how often the next token was right where all before it were."""

    def __init__(self, pool: ProposalPool) -> None:
        self._pool = pool
        self._look_ups = [_Rate() for _ in pool.look_ups]
        self._model = _Rate()
        self._chances = [_Rate() for _ in pool.chances]

    def note_look_up(self, match: Match, *, is_right: bool) -> None:
        """What a look-up gave first was right, or not; proposed or not."""
        kind = _kind(match)
        self._look_ups[kind].note(_ROW_MEMORY, is_right=is_right)
        self._pool.look_ups[kind].note(_POOL_MEMORY, is_right=is_right)

    def note_model(self, chance: float | None, *, is_right: bool) -> None:
        """A token of the model behind right ones only was right, or not.

        `chance` is how likely it was taken to be, if that is known.
        """
        if chance is not None:
            part = _part(chance)
            self._chances[part].note(_ROW_MEMORY, is_right=is_right)
            self._pool.chances[part].note(_POOL_MEMORY, is_right=is_right)
        self._model.note(_ROW_MEMORY, is_right=is_right)
        self._pool.model.note(_POOL_MEMORY, is_right=is_right)

    def note_no_model(self) -> None:
        """The model had no part in a proposal: what is known of it gets older."""
        self._model.fade(_ROW_FADING, _Rate())
        self._pool.model.fade(_POOL_FADING, _first_model())

    def look_up_rate(self, match: Match) -> float:
        """How often a looked-up token is right for which this speaks."""
        kind = _kind(match)
        return self._look_ups[kind].leaning_on(_rate(self._pool.look_ups[kind]), _LOOK_UP_WEIGHT)

    @property
    def model_rate(self) -> float:
        """How often a token of the model is right, where it was asked."""
        return self._model.leaning_on(_rate(self._pool.model), _MODEL_WEIGHT)

    def chance_of(self, chance: float) -> float:
        """How often a token of the model is right that was taken to be so likely."""
        part = _part(chance)
        return self._chances[part].leaning_on(_rate(self._pool.chances[part]), _MODEL_WEIGHT)


def _kind(match: Match) -> int:
    """Which record a look-up belongs to."""
    of_length = bisect_right(_LEAST, match.length) - 1
    of_share = int(match.share * (len(_FIRST_OF_SHARE) - 1))
    return of_length * len(_FIRST_OF_SHARE) + of_share


def _part(chance: float) -> int:
    """Which record a probability belongs to."""
    return min(_NUM_CHANCES - 1, int(_NUM_CHANCES * chance))


def _rate(pooled: _Rate) -> float:
    return pooled.num_right / pooled.num_seen
