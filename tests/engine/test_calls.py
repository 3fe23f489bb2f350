"""Calls between ranks come out as they went in, and nothing else comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.errors import ProtocolError
from exspec.engine.calls import Forward, Release, Stop, decode, encode
from exspec.engine.rows import RowInput

numbers = st.integers(0, 2**40)
rows = st.builds(
    RowInput,
    slot=numbers,
    start=numbers,
    tokens=st.lists(numbers, min_size=1, max_size=20).map(tuple),
    num_choices=numbers,
)
calls = st.one_of(
    st.just(Stop()),
    st.builds(Release, numbers),
    st.builds(Forward, st.lists(rows, max_size=6).map(tuple)),
)


@given(calls)
def test_a_call_comes_back(call):
    assert decode(encode(call)) == call


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 5))
def test_a_pass_that_was_cut_or_grew_is_refused(some, number):
    encoded = encode(Forward(tuple(some)))
    for wrong in (encoded[:-number], [*encoded, *range(number)]):
        with pytest.raises(ProtocolError):
            decode(wrong)


@pytest.mark.parametrize("wrong", [[], [3], [0, 1], [2], [2, 1, 1], [1]])
def test_other_numbers_are_refused(wrong):
    with pytest.raises(ProtocolError):
        decode(wrong)
