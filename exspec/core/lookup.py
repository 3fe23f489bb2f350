"""Prompt look-up (Saxena 2023): what followed a sequence's last tokens when they last occurred.

An index of one sequence's runs of tokens, so that a look-up costs as much in a long log as in a
short one, and the record of how often look-ups and a draft model were right, so that whichever is
expected to be accepted longer can be proposed, and no longer than pays. Arithmetic on token ids;
nothing else lives here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from exspec.core.acceptance import common_prefix_length

MOST_MATCHED = 16
"""Longer matches are taken to be this long."""
LEAST_LOOK_UP_CHANCE = 0.05
"""Looked-up tokens that are right with less than this chance are not proposed: they cost no draft,
but their share of a verify."""
_LEAST = (1, 2, 3, 4, 6, 8, 12, MOST_MATCHED)
"""Match lengths from one of these up to the next share a record."""
_FIRST_GUESSES = (0.25, 0.5, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)
"""How often the next token is right after matches of these lengths, before anything was seen."""
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


@dataclass(frozen=True, slots=True)
class LookUp:
    """`tokens` may come next: they followed when the last `match_length` tokens occurred before."""

    tokens: tuple[int, ...]
    match_length: int


class NgramIndex:
    """Owns one sequence's tokens, and where each run of them last ended."""

    def __init__(self, longest: int, shortest: int) -> None:
        """Runs of `longest` to `shortest` tokens are looked up, the longest first."""
        self._sizes = range(longest, min(shortest, longest) - 1, -1)
        self.clear()

    def clear(self) -> None:
        """Begin an empty sequence."""
        self.tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in self._sizes}
        self._earlier: dict[int, int | None] = dict.fromkeys(self._sizes)
        """Where the run at the very end ended before, by its size."""

    def follow(self, log: Sequence[int]) -> None:
        """Go on to a longer log; another one, too, but that is not cheap."""
        num_known = len(self.tokens)
        if list(log[:num_known]) != self.tokens:
            self.clear()
            num_known = 0
        for token in log[num_known:]:
            self.append(token)

    def append(self, token: int) -> None:
        """One token more."""
        self.tokens.append(token)
        end = len(self.tokens)
        for size, ends in self._ends.items():
            if end >= size:
                run = tuple(self.tokens[end - size :])
                self._earlier[size] = ends.get(run)
                ends[run] = end

    def look_up(self, num_tokens: int, drafted: Sequence[int] = ()) -> LookUp | None:
        """Up to `num_tokens` after the sequence and `drafted`; None if their end never occurred.

        The latest occurrence within the sequence counts. Where what followed it reaches the end, it
        goes on with itself: a text that repeats itself is taken to go on doing so.
        """
        for size in self._sizes:
            end = self._earlier_end(size, drafted)
            if end is not None:
                tokens = self._continuation(end, num_tokens, drafted)
                return LookUp(tokens, self._match_length(end, size, drafted))
        return None

    def _earlier_end(self, size: int, drafted: Sequence[int]) -> int | None:
        if not drafted:
            return self._earlier[size]
        if len(self.tokens) + len(drafted) < size:
            return None
        num_own = size - len(drafted)
        own = self.tokens[-num_own:] if num_own > 0 else ()
        return self._ends[size].get((*own, *drafted[-size:]))

    def _continuation(self, end: int, num_tokens: int, drafted: Sequence[int]) -> tuple[int, ...]:
        known = [*self.tokens[end : end + num_tokens], *drafted]
        while len(known) < num_tokens:
            known.append(known[len(known) - (len(self.tokens) + len(drafted) - end)])
        return tuple(known[:num_tokens])

    def _match_length(self, end: int, size: int, drafted: Sequence[int]) -> int:
        """How many tokens before the two places are the same; at least `size`."""
        if size < self._sizes[0]:
            return size
        before = self.tokens[max(0, end - MOST_MATCHED) : end]
        last = [*self.tokens[-MOST_MATCHED:], *drafted][-MOST_MATCHED:]
        return max(size, common_prefix_length(before[::-1], last[::-1]))


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
    return [_Rate(_FIRST_WEIGHT * guess, _FIRST_WEIGHT) for guess in _FIRST_GUESSES]


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
    """Of the model's tokens, by the probability it gave them."""


class ProposalRecord:
    """Owns what one row showed: how often the next token was right where all before it were.

    Of look-ups by the length of the match. A token that was right makes the match one longer, so
    the chance that a whole proposal is right follows from these rates alone.
    """

    def __init__(self, pool: ProposalPool) -> None:
        self._pool = pool
        self._look_ups = [_Rate() for _ in _LEAST]
        self._model = _Rate()
        self._chances = [_Rate() for _ in range(_NUM_CHANCES)]

    def note_look_up(self, match_length: int, *, is_right: bool) -> None:
        """What a look-up gave first after a match was right, or not; proposed or not."""
        kind = _kind(match_length)
        self._look_ups[kind].note(_ROW_MEMORY, is_right=is_right)
        self._pool.look_ups[kind].note(_POOL_MEMORY, is_right=is_right)

    def note_model(
        self, proposed: Sequence[int], actual: Sequence[int], chances: Sequence[float] = ()
    ) -> None:
        """The model proposed tokens, and others came: those up to the first wrong one are judged.

        What is not known yet is not judged. If it had no part, what is known of it gets older.
        `chances` are the probabilities it gave the first of its tokens.
        """
        if not proposed:
            self._model.fade(_ROW_FADING, _Rate())
            self._pool.model.fade(_POOL_FADING, _first_model())
        for index, (token, right) in enumerate(zip(proposed, actual, strict=False)):
            is_right = token == right
            if index < len(chances):
                part = _part(chances[index])
                self._chances[part].note(_ROW_MEMORY, is_right=is_right)
                self._pool.chances[part].note(_POOL_MEMORY, is_right=is_right)
            self._model.note(_ROW_MEMORY, is_right=is_right)
            self._pool.model.note(_POOL_MEMORY, is_right=is_right)
            if not is_right:
                return

    def look_up_length(self, match_length: int, num_tokens: int) -> float:
        """How many of so many looked-up tokens are expected to be accepted."""
        return sum(self._look_up_chances(match_length, num_tokens))

    def worthwhile(self, match_length: int, num_tokens: int, chance: float = 1.0) -> int:
        """How many of so many looked-up tokens are likely enough right to be verified.

        `chance`: that all before them are right.
        """
        chances = self._look_up_chances(match_length, num_tokens)
        return sum(chance * one >= LEAST_LOOK_UP_CHANCE for one in chances)

    def _look_up_chances(self, match_length: int, num_tokens: int) -> list[float]:
        """That the first, the first two, … are all right."""
        chance, chances = 1.0, list[float]()
        for index in range(num_tokens):
            kind = _kind(match_length + index)
            rate = _rate(self._pool.look_ups[kind])
            chance *= self._look_ups[kind].leaning_on(rate, _LOOK_UP_WEIGHT)
            chances.append(chance)
        return chances

    def draft_chance(self, chances: Sequence[float]) -> float:
        """That all tokens of the model are right to which it gave these probabilities."""
        whole = 1.0
        for chance in chances:
            part = _part(chance)
            rate = _rate(self._pool.chances[part])
            whole *= self._chances[part].leaning_on(rate, _MODEL_WEIGHT)
        return whole

    def model_length(self, num_tokens: int) -> float:
        """How many of so many tokens of the model are expected to be accepted."""
        rate = self._model.leaning_on(_rate(self._pool.model), _MODEL_WEIGHT)
        return sum(rate ** (index + 1) for index in range(num_tokens))


def _kind(match_length: int) -> int:
    """Which record a match length belongs to."""
    return bisect_right(_LEAST, match_length) - 1


def _part(chance: float) -> int:
    """Which record a probability belongs to."""
    return min(_NUM_CHANCES - 1, int(_NUM_CHANCES * chance))


def _rate(pooled: _Rate) -> float:
    return pooled.num_right / pooled.num_seen
