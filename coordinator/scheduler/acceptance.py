"""How likely a draft token is accepted: per row, leaning on what all rows showed. Arithmetic.

One number alpha per row: the chance that the next draft token is right, given that those before
it were. A round with K drafts then commits (1 - alpha^(K+1)) / (1 - alpha) tokens on average
(Leviathan et al., arXiv 2211.17192, equation 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

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


@dataclass(slots=True)
class AcceptancePool:
    """The record of all rows."""

    num_agreed: float = FIRST_GUESS * FIRST_WEIGHT
    num_judged: float = FIRST_WEIGHT

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


def judged(num_drafts: int, num_accepted: int) -> int:
    """Drafts the target judged: those after the first wrong one were never looked at."""
    return min(num_drafts, num_accepted + 1)


def expected_tokens(level: int, num_drafts: int) -> float:
    """Tokens a round of `num_drafts` commits at a level, bonus token included."""
    return _EXPECTED[min(level, NUM_LEVELS - 1)][num_drafts]


def chance(level: int, num_drafts: int) -> float:
    """That `num_drafts` draft tokens are all right."""
    return (level / NUM_LEVELS) ** num_drafts


def _series(alpha: float, most: int) -> list[float]:
    sums = [1.0]
    for power in range(1, most + 1):
        sums.append(sums[-1] + alpha**power)
    return sums


_EXPECTED = [_series(level / NUM_LEVELS, 64) for level in range(NUM_LEVELS)]
