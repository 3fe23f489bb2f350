"""A mixture of what a model thinks and what the text repeats, weighed by what came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.copying import MOST_RIVALS, NO_COPIES, Copies, CopyGates, copies_of
from exspec.core.lookup import NgramIndex

CLEAR = Copies({7: 1.0}, 6)


def _copies(log) -> Copies:
    index = NgramIndex(4, 1)
    index.follow(log)
    return copies_of(index.occurrences())


def test_what_followed_has_shares_by_the_length_of_the_match():
    copies = _copies([1, 2, 7, 2, 8, 1, 2])
    assert copies.match_length == 2
    assert copies.shares == {7: pytest.approx(8 / 9), 8: pytest.approx(1 / 9)}
    assert _copies([1, 2, 3]) == NO_COPIES


@given(st.lists(st.integers(0, 60), max_size=200))
def test_shares_are_shares(log):
    copies = _copies([*log, 0, *range(1, 40), 0])
    assert len(copies.shares) <= MOST_RIVALS
    assert 0 < sum(copies.shares.values()) <= 1 + 1e-9
    assert list(copies.shares.values()) == sorted(copies.shares.values(), reverse=True)


def test_where_nothing_repeats_itself_the_model_chooses():
    mixed = CopyGates().mix(5, {5: 0.3}, NO_COPIES)
    assert (mixed.token, mixed.chance) == (5, 0.3)


def test_a_sure_model_is_not_overruled_by_a_weak_match_and_an_unsure_one_is_by_a_strong_one():
    gates = CopyGates()
    assert gates.mix(5, {5: 0.9, 7: 0.01}, Copies({7: 1.0}, 1)).token == 5
    assert gates.mix(5, {5: 0.2, 7: 0.01}, CLEAR).token == 7


def test_both_together_outweigh_either():
    """The model's second choice, which the text has had before."""
    mixed = CopyGates().mix(5, {5: 0.4, 7: 0.35, 8: 0.05}, Copies({7: 0.5, 8: 0.5}, 2))
    assert mixed.token == 7
    assert 0.35 < mixed.chance < 0.5


def test_a_token_the_model_cannot_choose_may_be_copied():
    assert CopyGates().mix(5, {5: 0.2, 7: 0.0}, CLEAR).token == 7


@pytest.mark.parametrize(("came", "sure"), [(7, 0.5), (5, 0.3)])
def test_how_much_copying_counts_is_learned(came, sure):
    """At first the other one wins."""
    gates, copies, chances = CopyGates(), Copies({7: 1.0}, 2), {5: sure, 7: 0.01}
    assert gates.mix(5, chances, copies).token != came
    for _ in range(500):
        gates.note(gates.mix(5, chances, copies), came)
    assert gates.mix(5, chances, copies).token == came
    other = Copies({7: 1.0}, 5)
    assert gates.mix(5, {5: 0.5}, other) == CopyGates().mix(5, {5: 0.5}, other)


@pytest.mark.parametrize("num_before", [100, 100_000])
def test_what_was_learned_for_long_is_unlearned_soon(num_before):
    gates, copies = CopyGates(), Copies({7: 1.0}, 2)
    for _ in range(num_before):
        gates.note(gates.mix(5, {5: 0.9, 7: 0.02}, copies), 5)
    tries = 0
    while gates.mix(5, {5: 0.3, 7: 0.2}, copies).token != 7:
        gates.note(gates.mix(5, {5: 0.3, 7: 0.2}, copies), 7)
        tries += 1
        assert tries < 200


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=1),
    st.lists(st.integers(0, 9), max_size=30),
    st.integers(0, 9),
)
def test_it_never_learns_anything_that_is_no_share(chances, log, came):
    gates, choice = CopyGates(), next(iter(chances))
    copies = _copies(log)
    for _ in range(5):
        mixed = gates.mix(choice, chances, copies)
        assert 0 <= mixed.chance <= 1 + 1e-9
        assert mixed.token in {choice, *copies.shares}
        gates.note(mixed, came)
        assert all(0 <= part <= whole for part, whole in zip(gates.copied, gates.seen, strict=True))
        assert all(0 < gates._gate(length) < 1 for length in range(1, 20))
