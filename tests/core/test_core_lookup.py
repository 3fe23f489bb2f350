"""Prompt look-up: the index says what a plain scan says, and the record learns who is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.lookup import MOST_MATCHED, LookUp, NgramIndex, ProposalPool, ProposalRecord

LOGS = st.lists(st.integers(0, 2), max_size=40)
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda pair: (max(pair), min(pair)))


def _scan(log, drafted, num_tokens, longest, shortest):
    """The longest run of last tokens first, its latest occurrence within the log."""
    whole = [*log, *drafted]
    for size in range(longest, shortest - 1, -1):
        if size > len(whole):
            continue
        for end in range(min(len(log), len(whole) - 1), size - 1, -1):
            if whole[end - size : end] == whole[-size:]:
                text = whole[end:]
                while len(text) < num_tokens:
                    text += whole[end:]
                return LookUp(tuple(text[:num_tokens]), _match(whole, end, size, longest))
    return None


def _match(whole, end, size, longest):
    if size < longest:
        return size
    while size < min(MOST_MATCHED, end) and whole[end - size - 1] == whole[-size - 1]:
        size += 1
    return size


@given(LOGS, st.lists(st.integers(0, 2), max_size=6), st.integers(0, 7), SIZES)
def test_it_finds_what_a_scan_finds(log, drafted, num_tokens, sizes):
    index = NgramIndex(*sizes)
    index.follow(log)
    assert index.look_up(num_tokens, drafted) == _scan(log, drafted, num_tokens, *sizes)


@given(st.lists(LOGS, max_size=4), SIZES)
def test_how_a_log_came_about_makes_no_difference(parts, sizes):
    """Grown bit by bit, or after another log."""
    index, log = NgramIndex(*sizes), []
    for part in parts:
        log += part
        index.follow(log)
        assert index.look_up(4) == _scan(log, (), 4, *sizes)
    index.follow(log[1:])
    assert index.look_up(4) == _scan(log[1:], (), 4, *sizes)


def test_a_text_that_repeats_itself_goes_on_so():
    index = NgramIndex(3, 1)
    index.follow([9, 1, 2, 1, 2])
    assert index.look_up(5) == LookUp((1, 2, 1, 2, 1), 2)
    assert index.look_up(3, (1,)) == LookUp((2, 1, 2), 3)


def test_a_long_match_is_known_as_one():
    index = NgramIndex(2, 1)
    index.follow([*range(30), 99, *range(30)])
    assert index.look_up(2) == LookUp((99, 0), MOST_MATCHED)
    index.follow([*range(30), 99, *range(30), 99, 7, 28, 29])
    assert index.look_up(2) == LookUp((99, 7), 2)


def test_before_anything_was_seen_longer_matches_promise_more():
    record = ProposalRecord(ProposalPool())
    promises = [record.look_up_length(length, 5) for length in range(1, MOST_MATCHED + 4)]
    assert promises == sorted(promises)
    assert promises[0] < record.model_length(5) < promises[1] < promises[-1] < 5
    assert record.look_up_length(3, 0) == record.model_length(0) == 0


@pytest.mark.parametrize("is_right", [True, False])
def test_a_row_learns_from_itself_and_a_new_one_from_all(is_right):
    pool = ProposalPool()
    row, before = ProposalRecord(pool), ProposalRecord(ProposalPool()).look_up_length(2, 1)
    for _ in range(30):
        row.note_look_up(2, is_right=is_right)
    other = ProposalRecord(pool).look_up_length(2, 1)
    own = row.look_up_length(2, 1)
    assert before < other < own if is_right else before > other > own
    assert row.look_up_length(4, 1) == ProposalRecord(ProposalPool()).look_up_length(4, 1)


def test_a_token_that_was_right_makes_the_match_longer():
    record = ProposalRecord(ProposalPool())
    one, two = (record.look_up_length(length, 1) for length in (1, 2))
    assert record.look_up_length(1, 2) == pytest.approx(one + one * two)


@pytest.mark.parametrize(
    ("proposed", "actual", "num_right", "num_judged"),
    [
        ((1, 2, 3), (1, 2, 3, 4), 3, 3),
        ((1, 2, 3), (1, 9, 3), 1, 2),
        ((1, 2, 3), (9,), 0, 1),
        ((1, 2, 3), (1,), 1, 1),
        ((1, 2), (), 0, 0),
        ((), (1,), 0, 0),
    ],
)
def test_the_models_tokens_are_judged_up_to_the_first_wrong_one(
    proposed, actual, num_right, num_judged
):
    """Those after it were never looked at, and of what is not known nothing is said."""
    record, expected = ProposalRecord(ProposalPool()), ProposalRecord(ProposalPool())
    record.note_model(proposed, actual)
    for index in range(num_judged):
        expected.note_model((1,), (1 if index < num_right else 2,))
    assert record.model_length(4) == expected.model_length(4)


def test_a_model_that_is_not_asked_is_given_another_chance():
    """As much of one as it had at first, and no more."""
    pool = ProposalPool()
    row, new = ProposalRecord(pool), ProposalRecord(ProposalPool())
    for _ in range(600):
        row.note_model((1,), (2,))
    assert row.model_length(1) < 0.01
    for _ in range(4000):
        row.note_model((), (2,))
    assert 0.9 * new.model_length(1) < row.model_length(1) <= new.model_length(1)
    assert 0.9 < ProposalRecord(pool).model_length(1) / new.model_length(1) <= 1


def test_what_a_model_thinks_is_trusted_as_far_as_it_was_borne_out():
    pool = ProposalPool()
    record, new = ProposalRecord(pool), ProposalRecord(ProposalPool())
    assert new.draft_chance(()) == 1
    assert new.draft_chance((0.9,) * 32 + (0.1,) * 32) > 0.25
    for _ in range(60):
        record.note_model((1, 2), (1, 3), (0.95, 0.31))
    assert record.draft_chance((0.99,)) > 0.9
    assert record.draft_chance((0.35,)) < 0.2
    assert record.draft_chance((0.99, 0.35)) == pytest.approx(
        record.draft_chance((0.99,)) * record.draft_chance((0.35,))
    )
    assert ProposalRecord(pool).draft_chance((0.35,)) < 0.3  # another row's leans on it
    assert record.draft_chance((0.5, 1.0)) < 1  # 1 has a record, too


def test_tokens_behind_the_first_wrong_one_say_nothing_of_what_the_model_thinks():
    record, expected = ProposalRecord(ProposalPool()), ProposalRecord(ProposalPool())
    record.note_model((1, 2, 3), (9, 2, 3), (0.2, 0.5, 0.7))
    expected.note_model((1,), (9,), (0.2,))
    for chance in (0.2, 0.5, 0.7):
        assert record.draft_chance((chance,)) == expected.draft_chance((chance,))


def test_looked_up_tokens_that_are_hardly_right_are_not_worth_verifying():
    record = ProposalRecord(ProposalPool())
    assert record.worthwhile(MOST_MATCHED, 64) > record.worthwhile(1, 64) > 1
    assert record.worthwhile(MOST_MATCHED, 64) > record.worthwhile(MOST_MATCHED, 64, 0.3) > 0
    assert record.worthwhile(MOST_MATCHED, 64, 0.04) == 0
    for _ in range(100):
        record.note_look_up(1, is_right=False)
    assert record.worthwhile(1, 64) == 0
    for _ in range(300):
        record.note_look_up(MOST_MATCHED, is_right=True)
    assert record.worthwhile(MOST_MATCHED, 64) == 64
