"""What a service measures, as values: the names, the figures, and histograms that are counted here.

How they are exposed is `exspec.runtime.metrics_http`; nothing here knows Prometheus's library.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate


class MetricKind(Enum):
    """What may happen to a figure: counters only grow, gauges go both ways."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One name that a scrape shows. Counters end in `_total`; durations are seconds."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names its series have in a query."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """`counts[i]` observations were at most `bounds[i]` and above the bound before it.

    The last count, one more than there are bounds, is of those above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def num_observations(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    @property
    def cumulative_counts(self) -> tuple[int, ...]:
        """Observations at most each bound, and of all at the end."""
        return tuple(accumulate(self.counts))


class Histogram:
    """Owns the counts of one distribution."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def value(self) -> HistogramValue:
        """The counts so far."""
        return HistogramValue(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a metric now; `labels` are the values of the metric's labels, in order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | HistogramValue

    def __post_init__(self) -> None:
        assert len(self.labels) == len(self.metric.labels)
        is_histogram = isinstance(self.value, HistogramValue)
        assert is_histogram == (self.metric.kind is MetricKind.HISTOGRAM)


Samples = tuple[Sample, ...]
"""All figures of one moment."""
