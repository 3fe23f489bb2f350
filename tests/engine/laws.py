"""Does a sample follow a law? Chi-square and total variation, and what they would miss.

Pure arithmetic; the samples come from elsewhere. `SIGNIFICANCE` is how often a right sampler would
be blamed if seeds were drawn anew each time; they are fixed, so it is either always or never.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SIGNIFICANCE = 1e-4
LEAST_EXPECTED = 5.0
"""Outcomes expected less often are counted together."""


@dataclass(frozen=True)
class Fit:
    """How well counts follow a law."""

    p_value: float
    total_variation: float
    num_outcomes: int

    @property
    def is_good(self) -> bool:
        return self.p_value >= SIGNIFICANCE


def fit(counts: torch.Tensor, law: torch.Tensor) -> Fit:
    """Counts and probabilities of the same outcomes, each of any shape, float64.

    An outcome of probability 0 that occurred once is enough to refute the law.
    """
    counts, law = counts.flatten().double(), law.flatten().double()
    num = counts.sum()
    distance = float((counts / num - law).abs().sum() / 2)
    if bool((counts[law == 0] > 0).any()):
        return Fit(0.0, distance, int((law > 0).sum()))
    expected = law * num
    is_rare = expected < LEAST_EXPECTED
    seen, hoped = counts[~is_rare], expected[~is_rare]
    if float(expected[is_rare].sum()) >= LEAST_EXPECTED:
        seen = torch.cat((seen, counts[is_rare].sum()[None]))
        hoped = torch.cat((hoped, expected[is_rare].sum()[None]))
    statistic = ((seen - hoped) ** 2 / hoped).sum()
    half_freedom = torch.tensor((len(seen) - 1) / 2, dtype=torch.float64)
    p_value = float(torch.special.gammaincc(half_freedom, statistic / 2))
    return Fit(p_value, distance, len(seen))


def caught_distance(num_samples: int, num_outcomes: int) -> float:
    """Any sampler at least so far from the law (total variation) is caught 99 times of 100.

    The worst case: the deviation is spread so that chi-square sees least of it, in proportion to
    the law itself. Then the statistic's mean rises by lambda = 4 n d^2 over its degrees of freedom
    f, and its variance is 2 (f + 2 lambda); it has to pass the quantile of SIGNIFICANCE.
    """
    freedom = num_outcomes - 1
    limit = _quantile(freedom)
    shift = 1.0
    while freedom + shift - 2.33 * (2 * (freedom + 2 * shift)) ** 0.5 < limit:
        shift *= 1.01
    return (shift / (4 * num_samples)) ** 0.5


def _quantile(freedom: int) -> float:
    """What chi-square passes with probability SIGNIFICANCE."""
    low, high = 0.0, 100.0 * (freedom + 1)
    while high - low > 1e-3:
        middle = (low + high) / 2
        upper_tail = torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(middle / 2))
        low, high = (middle, high) if float(upper_tail) > SIGNIFICANCE else (low, middle)
    return high
