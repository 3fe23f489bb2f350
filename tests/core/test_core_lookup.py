"""Prompt look-up: the index finds what a plain scan finds, and all occurrences have their say."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.lookup import MOST_MATCHED, MOST_OCCURRENCES, LookUp, Match, NgramIndex

LOGS = st.lists(st.integers(0, 2), max_size=40)
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda pair: (max(pair), min(pair)))


def _scan(log, drafted, longest, shortest):
    """Ends of the runs of last tokens within the log, longest run first, then latest."""
    whole, ends = [*log, *drafted], []
    for size in range(longest, shortest - 1, -1):
        for end in range(min(len(log), len(whole) - 1), size - 1, -1):
            if whole[end - size : end] == whole[-size:] and end not in ends:
                ends.append(end)
    return [(whole[end], end, _match(whole, end)) for end in ends[:MOST_OCCURRENCES]]


def _match(whole, end):
    size = 1
    while size < min(MOST_MATCHED, end) and whole[end - size - 1] == whole[-size - 1]:
        size += 1
    return size


def _found(index, drafted=()):
    return [(one.token, one.end, one.match_length) for one in index.occurrences(drafted)]


@given(LOGS, st.lists(st.integers(0, 2), max_size=6), SIZES)
def test_it_finds_what_a_scan_finds(log, drafted, sizes):
    index = NgramIndex(*sizes)
    index.follow(log)
    assert _found(index, drafted) == _scan(log, drafted, *sizes)


@given(st.lists(LOGS, max_size=4), SIZES)
def test_how_a_log_came_about_makes_no_difference(parts, sizes):
    """Grown bit by bit, or after another log."""
    index, log = NgramIndex(*sizes), []
    for part in parts:
        log += part
        index.follow(log)
        assert _found(index) == _scan(log, (), *sizes)
    index.follow(log[1:])
    assert _found(index) == _scan(log[1:], (), *sizes)


@given(LOGS, st.lists(st.integers(0, 2), max_size=6), st.integers(0, 7), SIZES)
def test_a_look_up_is_won_token_by_token(log, drafted, num_tokens, sizes):
    index = NgramIndex(*sizes)
    index.follow(log)
    found = index.look_up(num_tokens, drafted)
    added = list(drafted)
    for token, match in zip(found.tokens, found.matches, strict=True):
        scan = _scan(log, added, *sizes)
        votes = Counter()
        for one, _, length in scan:
            votes[one] += min(length, 8) ** 3
        best = max(votes.values())
        assert token == next(one for one, _, _ in scan if votes[one] == best)
        longest = max(length for one, _, length in scan if one == token)
        assert match == Match(longest, best / sum(votes.values()))
        added.append(token)
    assert len(found.tokens) <= num_tokens
    assert len(found.tokens) == num_tokens or not _scan(log, added, *sizes)


def test_a_text_that_repeats_itself_goes_on_so():
    index = NgramIndex(3, 1)
    index.follow([9, 1, 2, 1, 2])
    found = index.look_up(5)
    assert (found.tokens, found.matches[0]) == ((1, 2, 1, 2, 1), Match(2, 1))
    assert index.look_up(3, (1,)).tokens == (2, 1, 2)
    assert index.look_up(2, (77,)) == LookUp((), ())


def test_a_long_match_is_known_as_one():
    index = NgramIndex(2, 1)
    index.follow([*range(30), 99, *range(30)])
    assert index.look_up(2).matches[0] == Match(MOST_MATCHED, 1)


def test_longer_matches_have_more_say_than_later_ones():
    index = NgramIndex(3, 1)
    index.follow([1, 2, 3, 7, 3, 8, 3, 9, 1, 2, 3])
    found = index.look_up(1)
    assert found == LookUp((7,), (Match(3, 27 / 29),))


def test_of_equal_matches_the_majority_wins_and_then_the_latest():
    index = NgramIndex(2, 1)
    index.follow([5, 7, 5, 8, 5, 7, 5, 9, 5])
    assert index.look_up(1) == LookUp((7,), (Match(1, 2 / 4),))
    index.follow([5, 7, 5, 8, 5])
    assert index.look_up(1) == LookUp((8,), (Match(1, 1 / 2),))


def test_a_long_match_is_found_behind_many_short_ones():
    index = NgramIndex(4, 1)
    index.follow([1, 2, 3, 4, 99, *[9, 4] * (2 * MOST_OCCURRENCES), 1, 2, 3, 4])
    assert index.look_up(1).tokens == (99,)
    assert len(index.occurrences()) == MOST_OCCURRENCES


@pytest.mark.parametrize("shortest", [2, 3])
def test_shorter_runs_than_wanted_are_not_looked_up(shortest):
    index = NgramIndex(4, shortest)
    index.follow([1, 2, 3, 9, 2, 3])
    assert index.look_up(1).tokens == ((9,) if shortest == 2 else ())
