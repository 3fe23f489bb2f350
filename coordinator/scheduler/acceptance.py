"""How likely a draft token is accepted: per row, leaning on what all rows showed. Arithmetic.

One number alpha per row: the chance that the next draft token is right, given that those before
it were. Were it the same at every place, a round with K drafts would commit
(1 - alpha^(K+1)) / (1 - alpha) tokens on average (Leviathan et al., arXiv 2211.17192, equation 1).
It is not: where two tokens were right, text often repeats itself and the third is right, too; and
drafts may end before K. So how places differ is learned of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from coordinator.scheduler.estimates import Depths
from coordinator.scheduler.rows import Row

ROW_MEMORY = 0.97
"""What a round counts of the next one, in a row's own record."""
POOL_MEMORY = 0.995
"""The same, per row and round, in the record of all rows."""
POOL_WEIGHT = 20.0
"""Judged tokens of its own after which a row's record counts as much as that of all rows."""
FADING = 0.97
"""What is left of the record of all rows after a round in which nothing was drafted."""
FADED_WEIGHT = 10.0
"""Judged tokens it does not fade below."""
FIRST_GUESS = 0.6
FIRST_WEIGHT = 10.0
NUM_LEVELS = 40
"""alpha is rounded to a multiple of 1 / NUM_LEVELS where rows are counted."""
PLACE_MEMORY = 0.998
"""What a row's round counts of the next one, in the records of places."""
PLACE_WEIGHT = 10.0
"""Foretold right drafts after which a place's record counts as much as the place before it."""
MOST_LIKELY = 0.99


@dataclass(slots=True)
class _Place:
    """The drafts at one place of a round: how many were right, of how many rows of usual alpha.

    A row of twice that counts twice.
    """

    num_right: float = 0.0
    num_rows: float = 0.0

    def fade(self) -> None:
        self.num_right *= PLACE_MEMORY
        self.num_rows *= PLACE_MEMORY


@dataclass(slots=True)
class AcceptancePool:
    """The record of all rows. Of drafts behind the first `most` nothing is noted or foretold."""

    most: int = 64
    num_agreed: float = FIRST_GUESS * FIRST_WEIGHT
    num_judged: float = FIRST_WEIGHT
    _places: list[_Place] = field(default_factory=list[_Place])
    _sums: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict[int, Any])
    """By level: the chance that the first k drafts are right, and the tokens of k drafts."""
    made: Depths = field(default_factory=lambda: Depths(PLACE_MEMORY))
    """How many planned drafts come at all."""

    @property
    def rate(self) -> float:
        """alpha of a row nothing is known of."""
        return self.num_agreed / self.num_judged

    @property
    def doubt(self) -> int:
        """Levels by which the record may be off: one standard deviation."""
        rate = self.rate
        return round(NUM_LEVELS * sqrt(rate * (1 - rate) / self.num_judged))

    def note(self, num_agreed: int, num_judged: int) -> None:
        """A row's round: drafts accepted, and drafts judged (those and the first wrong one)."""
        self.num_agreed = POOL_MEMORY * self.num_agreed + num_agreed
        self.num_judged = POOL_MEMORY * self.num_judged + num_judged

    def note_places(self, level: int, num_planned: int, num_accepted: int) -> None:
        """How far a round of `num_planned` drafts of a row at a level got.

        A draft that was planned and not made, for those before it were in vain, was not right.
        """
        num_reached = min(num_planned, num_accepted + 1, self.most)
        while len(self._places) < num_reached:
            self._places.append(_Place())
        for place in self._places:
            place.fade()
        for index in range(num_reached):
            self._places[index].num_right += index < num_accepted
            self._places[index].num_rows += max(level, 1) / max(NUM_LEVELS * self.rate, 1)
        self._sums.clear()

    def chance(self, level: int, num_drafts: int) -> float:
        """That `num_drafts` draft tokens are all right."""
        return self._of(level)[0][min(num_drafts, self.most)]

    def expected_tokens(self, level: int, num_drafts: int) -> float:
        """Tokens a round of `num_drafts` commits at a level, bonus token included."""
        return self._of(level)[1][min(num_drafts, self.most)]

    def _of(self, level: int) -> tuple[list[float], list[float]]:
        level = min(level, NUM_LEVELS - 1)
        known = self._sums.get(level)
        if known is None:
            known = self._sums[level] = self._foretell(level / NUM_LEVELS)
        return known

    def _foretell(self, alpha: float) -> tuple[list[float], list[float]]:
        """A place nothing is known of is like the one before it."""
        usual = sum(place.num_right for place in self._places)
        usual /= max(1.0, sum(place.num_rows for place in self._places))
        ratio, chances, tokens = 1.0, [1.0], [1.0]
        for index in range(self.most):
            if index < len(self._places):
                place = self._places[index]
                right = PLACE_WEIGHT * ratio + place.num_right
                ratio = right / (PLACE_WEIGHT + usual * place.num_rows)
            chances.append(chances[-1] * min(MOST_LIKELY, alpha * ratio))
            tokens.append(tokens[-1] + chances[-1])
        return chances, tokens

    def fade(self) -> None:
        """A round without drafts: what is known gets older."""
        if self.num_judged > FADED_WEIGHT:
            self.num_agreed *= FADING
            self.num_judged *= FADING

    def level(self, row: Row) -> int:
        """alpha of a row, as a level: its own record and POOL_WEIGHT tokens of the pool's."""
        agreed = POOL_WEIGHT * self.rate + row.num_agreed
        return min(NUM_LEVELS - 1, round(NUM_LEVELS * agreed / (POOL_WEIGHT + row.num_judged)))


def remembered(row: Row, num_drafts: int, num_accepted: int) -> tuple[float, float]:
    """A row's record (agreed, judged) after a round, also after one without drafts."""
    return (
        ROW_MEMORY * row.num_agreed + num_accepted,
        ROW_MEMORY * row.num_judged + judged(num_drafts, num_accepted),
    )


def planned(row: Row, num_drafts: int) -> int:
    """What a round that brought drafts is measured by: those planned, had there been any.

    A draft worker ends early what is in vain; what it left out would not have been right.
    """
    return max(num_drafts, row.num_planned) if num_drafts else 0


def judged(num_drafts: int, num_accepted: int) -> int:
    """Drafts the target judged: those after the first wrong one were never looked at."""
    return min(num_drafts, num_accepted + 1)
