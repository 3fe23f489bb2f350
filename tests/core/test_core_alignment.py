"""Left pads, widths and shifts: I1 and I2 in lengths (paper, section 3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.alignment import AlignmentPlan, RowShape, aligned, appended, plan_alignment

SHAPES = st.lists(st.builds(RowShape, st.integers(0, 9), st.integers(0, 30)), min_size=1)


@st.composite
def block_and_counts(draw):
    """An aligned block of some width, and how many tokens each row appends to it."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=9))
    width = max(lengths) + draw(st.integers(0, 4))  # padding shared by all may be left
    rows = tuple(RowShape(width - length, length) for length in lengths)
    counts = draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    return width, rows, counts


def test_example():
    rows = (RowShape(0, 10), RowShape(3, 7))
    grown = appended(rows, [1, 4])
    plan = plan_alignment(grown)
    assert grown == (RowShape(0, 11), RowShape(3, 11))
    assert plan == AlignmentPlan(11, (0, 0), (0, -3))
    assert (plan.is_noop, plan.num_moved_rows) == (False, 1)
    assert aligned(grown, plan) == (RowShape(0, 11), RowShape(0, 11))


@given(SHAPES)
def test_i1_all_rows_end_at_the_width(rows):
    plan = plan_alignment(rows)
    assert all(row.end == plan.width for row in aligned(rows, plan))
    assert all(pad >= 0 for pad in plan.left_pads)


@given(SHAPES)
def test_i2_content_is_moved_whole(rows):
    """A token's position is its column minus the pad: the shift of the row and of its pad agree."""
    plan = plan_alignment(rows)
    for row, after, shift in zip(rows, aligned(rows, plan), plan.shifts, strict=True):
        assert after.length == row.length
        assert after.left_pad - row.left_pad == shift


@given(block_and_counts())
def test_shifts_are_those_of_the_paper(drawn):
    """δ_i = L' - L - a_i."""
    width, rows, counts = drawn
    plan = plan_alignment(appended(rows, counts))
    assert plan.shifts == tuple(plan.width - width - count for count in counts)


@given(block_and_counts())
def test_nothing_moves_exactly_when_all_accept_the_same(drawn):
    """Corollaries B.2 and B.3, whatever the pads. When something moves, shared padding is gone."""
    _, rows, counts = drawn
    plan = plan_alignment(appended(rows, counts))
    assert plan.is_noop or min(plan.left_pads) == 0
    if len(set(counts)) == 1:
        assert plan.is_noop
    if plan.is_noop:
        assert plan.num_moved_rows == 0
        assert len(set(counts)) == 1


@given(SHAPES)
def test_an_aligned_block_needs_no_alignment(rows):
    after = aligned(rows, plan_alignment(rows))
    assert plan_alignment(after).is_noop


@given(st.integers(0, 9), st.integers(0, 30))
def test_one_row_never_moves(left_pad, length):
    assert plan_alignment([RowShape(left_pad, length)]).is_noop


@pytest.mark.parametrize("rows", [[], [RowShape(-1, 2)], [RowShape(0, 3), RowShape(0, -1)]])
def test_impossible_blocks_are_refused(rows):
    with pytest.raises(ValueError, match=r"at least one row|negative"):
        plan_alignment(rows)


def test_counts_must_match_rows():
    with pytest.raises(ValueError, match="zip"):
        appended([RowShape(0, 1)], [1, 2])
