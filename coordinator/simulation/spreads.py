"""Percentiles and means of lists of numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How numbers are spread; all 0 for none. Percentiles are of the nearest rank."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


def spread(values: Sequence[float]) -> Spread:
    """Mean and percentiles."""
    if not values:
        return Spread()
    ordered = sorted(values)
    return Spread(
        mean=math.fsum(ordered) / len(ordered),
        p50=_percentile(ordered, 50),
        p90=_percentile(ordered, 90),
        p99=_percentile(ordered, 99),
    )


def ratio(part: float, whole: float) -> float:
    """0 for a part of nothing."""
    return part / whole if whole else 0.0


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]
