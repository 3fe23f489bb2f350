"""Prompt look-up: what followed the last few tokens when they last occurred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_worker.drafter import Drafter
from draft_worker.ngram_proposer import NgramProposer
from draft_worker.proposer import ProposalRow
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import DraftBatch, DraftEntry, EntryKey, EntryStatus
from exspec.core.sessions import Feed


def _propose(log: tuple[int, ...], count: int = 3, longest: int = 3, shortest: int = 1):
    proposer = NgramProposer(num_slots=1, longest=longest, shortest=shortest)
    (tokens,) = proposer.propose([ProposalRow(Feed(0, 0, log), log, count)]).tokens
    return tokens


@pytest.mark.parametrize(
    ("log", "proposed"),
    [
        ((1, 2, 3, 9, 1, 2, 3), (9, 1, 2)),
        ((1, 2, 3, 4), ()),
        ((1,), ()),
        ((5, 5), (5, 5, 5)),
        ((1, 7, 2, 7), (2, 7, 2)),
        ((1, 2, 1), (2, 1, 2)),
        # A long match has more say than short ones; of equals the most, then the latest.
        ((1, 2, 8, 1, 2, 9, 1, 2), (9, 1, 2)),
        ((1, 2, 3, 8, 4, 2, 3, 9, 1, 2, 3), (8, 4, 2)),
    ],
)
def test_examples(log, proposed):
    assert _propose(log) == proposed


def test_shorter_runs_than_asked_for_are_not_looked_up():
    assert _propose((1, 7, 2, 7), shortest=2) == ()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_a_proposal_follows_an_earlier_occurrence_of_the_end(log, count, longest, shortest):
    proposed = _propose(log, count, longest, shortest)
    least = min(longest, shortest)
    places = [end for end in range(least, len(log)) if log[end - least : end] == log[-least:]]
    assert bool(proposed) == bool(places)
    if proposed:
        assert len(proposed) == count
        assert any(_repeated(log[end:], count) == proposed for end in places)


def _repeated(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(tokens[i % len(tokens)] for i in range(count))


def test_it_drafts_over_rounds():
    proposer = NgramProposer(num_slots=2, longest=3, shortest=2)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=10)
    log = (1, 2, 3, 4, 1, 2)

    def draft(start: int, round_index: int):
        key = EntryKey(SequenceId("s"), 0, round_index)
        item = DraftEntry(key, start, log[start:], 2)
        return drafter.draft(DraftBatch(BatchId(round_index), (item,)), 0.0).results[0]

    assert draft(0, 1).draft_tokens == (3, 4)
    log = (*log, 3, 9)
    assert (draft(6, 2).status, draft(6, 2).draft_tokens) == (EntryStatus.OK, ())
    log = (*log, 1, 2, 3)
    assert draft(8, 3).draft_tokens == (9, 1)
