"""The record of who was right: rows learn from themselves and from all, what is old counts less."""

from __future__ import annotations

import pytest

from exspec.core.lookup import MOST_MATCHED, Match
from exspec.core.proposal_records import ProposalPool, ProposalRecord


def _new() -> ProposalRecord:
    return ProposalRecord(ProposalPool())


def test_before_anything_was_seen_longer_and_clearer_matches_promise_more():
    record = _new()
    by_length = [record.look_up_rate(Match(n, 1.0)) for n in range(1, MOST_MATCHED + 4)]
    by_share = [record.look_up_rate(Match(4, share)) for share in (0.1, 0.3, 0.6, 0.99, 1.0)]
    assert by_length == sorted(by_length)
    assert by_share == sorted(set(by_share))
    assert by_length[0] <= record.model_rate < by_length[1] < by_length[-1] < 1


@pytest.mark.parametrize("is_right", [True, False])
def test_a_row_learns_from_itself_and_a_new_one_from_all(is_right):
    pool, match = ProposalPool(), Match(2, 0.6)
    row, before = ProposalRecord(pool), _new().look_up_rate(match)
    for _ in range(30):
        row.note_look_up(match, is_right=is_right)
    other, own = ProposalRecord(pool).look_up_rate(match), row.look_up_rate(match)
    assert before < other < own if is_right else before > other > own
    for unlike in (Match(4, 0.6), Match(2, 0.8), Match(2, 0.3)):
        assert row.look_up_rate(unlike) == _new().look_up_rate(unlike)


def test_a_model_that_is_not_asked_is_given_another_chance():
    """As much of one as it had at first, and no more."""
    pool = ProposalPool()
    row, new = ProposalRecord(pool), _new()
    for _ in range(600):
        row.note_model(None, is_right=False)
    assert row.model_rate < 0.01
    for _ in range(4000):
        row.note_no_model()
    assert 0.9 * new.model_rate < row.model_rate <= new.model_rate
    assert 0.9 < ProposalRecord(pool).model_rate / new.model_rate <= 1


def test_what_a_model_thinks_is_trusted_as_far_as_it_was_borne_out():
    pool = ProposalPool()
    record = ProposalRecord(pool)
    assert _new().chance_of(0.05) > 0.9  # nothing was found to be in vain yet
    for _ in range(60):
        record.note_model(0.95, is_right=True)
        record.note_model(0.31, is_right=False)
    assert record.chance_of(0.99) > 0.9
    assert record.chance_of(0.35) < 0.2
    assert ProposalRecord(pool).chance_of(0.35) < 0.3  # another row's leans on it
    assert record.chance_of(0.5) == _new().chance_of(0.5)
    assert record.chance_of(1.0) > 0.9  # 1 has a record, too


def test_what_is_old_counts_less():
    record = _new()
    for is_right in (*[False] * 300, *[True] * 100):
        record.note_model(None, is_right=is_right)
    assert record.model_rate > 0.6
