"""The judge's noise: what `exspec.engine.choosing.noise` defines, in plain Python integers.

Written down once more from the definition: nothing is imported from there. A token's 64 bits are
the number that splitmix64 gives at step (token + 1), started from the number that it gives at step
(position + 1), started from the first number that it gives for the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_BITS = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int, token: int) -> float:
    """A number in (0, 1) that belongs to a token at a position: the upper 52 of its bits.

    They are counted from the middle: 1 / 2 is added to what a signed number would mean.
    """
    key = _splitmix64(_splitmix64(seed, 1), position + 1)
    upper = _splitmix64(key, token + 1) >> 12
    upper = upper + 2**51 if upper < 2**51 else upper - 2**51
    return (upper + 0.5) / 2**52


def gumbel_noise(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """What is added to the log probability of each of the tokens."""
    return [-math.log(-math.log(uniform(seed, position, token))) for token in tokens]


def _splitmix64(start: int, step: int) -> int:
    """The number at a step (from 1) of the generator by Steele, Lea and Flood (2014)."""
    number = (start + step * _STEP) & _BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _BITS
    return number ^ (number >> 31)
