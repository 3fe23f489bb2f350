"""Small estimators fed with one number at a time. Arithmetic; no rows, no workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_MEMORY = 0.98
"""What a measurement counts of the next one."""
_MEMORY_SURPRISED = 0.1
"""The same when it is far from the forecast as the last one was: something has changed."""
_SURPRISING = 0.5
"""How far that is, as a share of the forecast."""
_MOST_SURPRISING = 3.0
"""A measurement of more than this many times the forecast counts as that."""
_FIXED_SHARE = 0.6
"""What of the first measurement is taken to be the fixed part."""
_NUM_SWEEPS = 6
"""Rounds of coordinate descent per measurement; it goes on from where the last ones ended."""


class LinearCost:
    """Seconds as a weighted sum of features, the first of them always 1; fitted online.

    Least squares of the relative error, so that small passes count as much as large ones, over
    measurements that fade (faster while they keep surprising). No weight is negative. Where
    measurements leave weights open (rows and tokens that always rise together) they stay as they
    were. Lawson and Hanson's problem, solved by coordinate descent.
    """

    def __init__(self, num_features: int) -> None:
        self._weights = [0.0] * num_features
        self._products = [[0.0] * num_features for _ in range(num_features)]
        self._sums = [0.0] * num_features
        self._was_surprised = False
        self.num_seen = 0

    def predict(self, features: Sequence[float]) -> float:
        """Seconds; 0 before the first measurement."""
        return sum(
            weight * feature for weight, feature in zip(self._weights, features, strict=True)
        )

    def weight(self, feature: int) -> float:
        """Seconds that one more unit of a feature takes."""
        return self._weights[feature]

    def update(self, features: Sequence[float], seconds: float) -> None:
        """Learn from one measurement; one without a time is ignored."""
        if seconds <= 0:
            return
        self.num_seen += 1
        if self.num_seen == 1:
            self._begin(features, seconds)
        forecast = self.predict(features) or seconds
        ratio = min(seconds / forecast, _MOST_SURPRISING)
        is_surprised = abs(ratio - 1) >= _SURPRISING
        memory = _MEMORY_SURPRISED if is_surprised and self._was_surprised else _MEMORY
        self._was_surprised = is_surprised
        scaled = [feature / forecast for feature in features]
        for i, feature in enumerate(scaled):
            self._sums[i] = memory * self._sums[i] + feature * ratio
            products = self._products[i]
            for j, other in enumerate(scaled):
                products[j] = memory * products[j] + feature * other
        for _ in range(_NUM_SWEEPS):
            self._sweep()

    def _begin(self, features: Sequence[float], seconds: float) -> None:
        """Split the first measurement between the fixed part and the features that were there."""
        others = [i for i, feature in enumerate(features) if i and feature > 0]
        self._weights[0] = seconds * (_FIXED_SHARE if others else 1.0)
        for i in others:
            self._weights[i] = seconds * (1 - _FIXED_SHARE) / (len(others) * features[i])

    def _sweep(self) -> None:
        """The best value of each weight in turn, the others as they are."""
        weights = self._weights
        for i, products in enumerate(self._products):
            if products[i] > 0:
                gap = self._sums[i] - sum(
                    product * weight for product, weight in zip(products, weights, strict=True)
                )
                weights[i] = max(0.0, weights[i] + gap / products[i])


class Mean:
    """A mean that forgets: each value counts `1 - rate` of what the next one does."""

    def __init__(self, rate: float, start: float = 0.0) -> None:
        self._rate = rate
        self.value = start
        self.num_seen = 0.0

    def update(self, value: float) -> None:
        """Learn from one value; the first few count equally."""
        self.num_seen += 1
        self.value += max(self._rate, 1 / self.num_seen) * (value - self.value)

    def fade(self, memory: float, least: float) -> None:
        """No value came: what was seen counts less, but as much as `least` values."""
        seen = min(self.num_seen, 1 / self._rate)
        self.num_seen = max(min(least, seen), memory * seen)


class Depths:
    """How far drafts get of what was planned for them: by place, how often they get there.

    Recent rows count more: each counts `memory` of the next one. A place nothing is known of is
    like the one before it, which counts as one row, and before the first there are all.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._num_made: list[float] = []
        self._num_planned: list[float] = []
        self._chances: list[float] = []
        self._sums: list[float] = [0.0]
        """Of the first chances."""

    def note(self, num_planned: int, num_made: int) -> None:
        """A row's draft."""
        for place in range(len(self._num_planned), num_planned):
            self._num_made.append(self.chance(place))
            self._num_planned.append(1.0)
            self._chances.clear()
        for index in range(num_planned):
            self._num_made[index] = self._memory * self._num_made[index] + (index < num_made)
            self._num_planned[index] = self._memory * self._num_planned[index] + 1
        self._chances.clear()

    def fade(self, memory: float, least: float) -> None:
        """Nothing was drafted: what was seen counts less, but as much as `least` rows."""
        for index, seen in enumerate(self._num_planned):
            if seen > least:
                share = max(least, memory * seen) / seen
                self._num_made[index] *= share
                self._num_planned[index] *= share
        self._chances.clear()

    def chance(self, place: int) -> float:
        """That a planned draft at a place, from 1, is made."""
        self._work_out()
        place = min(place, len(self._chances))
        return self._chances[place - 1] if place else 1.0

    def expected(self, num_planned: int) -> float:
        """How many of so many planned drafts are made."""
        self._work_out()
        num_known = min(num_planned, len(self._chances))
        return self._sums[num_known] + (num_planned - num_known) * self.chance(num_known)

    def _work_out(self) -> None:
        """Once after each change: both are asked for many rows and many K."""
        if not self._chances:
            pairs = zip(self._num_made, self._num_planned, strict=True)
            # A place is reached by way of all others, however long ago it was planned for itself.
            self._chances = list(accumulate((made / planned for made, planned in pairs), min))
            self._sums = list(accumulate(self._chances, initial=0.0))
