"""Histograms count what they are shown, once, and at the right bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.metrics import Histogram, Metric, MetricKind, Sample

_BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.floats(0, 20, allow_nan=False)))
def test_every_bucket_counts_what_is_at_most_its_bound(observed):
    histogram = Histogram(_BOUNDS)
    for value in observed:
        histogram.observe(value)
    value = histogram.value
    expected = tuple(sum(v <= bound for v in observed) for bound in _BOUNDS)
    assert value.cumulative_counts == (*expected, len(observed))
    assert value.num_observations == len(observed)
    assert value.total == pytest.approx(sum(observed))


def test_a_value_does_not_change_any_more():
    histogram = Histogram(_BOUNDS)
    before = histogram.value
    histogram.observe(0.5)
    assert before.num_observations == 0


def test_a_sample_fits_its_metric():
    gauge = Metric("g", MetricKind.GAUGE, "", ("a", "b"))
    with pytest.raises(AssertionError):
        Sample(gauge, ("x",), 1)
    with pytest.raises(AssertionError):
        Sample(gauge, ("x", "y"), Histogram(_BOUNDS).value)
