"""What a verified block commits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core.acceptance import (
    Block,
    FinishReason,
    accept,
    common_prefix_length,
    cut_block,
    looked_up_among,
    speculation_cap,
)

TOKENS = st.integers(0, 5)


@pytest.mark.parametrize(
    ("num_taken", "num_looked_up", "expected"),
    [(0, 2, 0), (3, 2, 0), (4, 2, 1), (5, 2, 2), (5, 0, 0), (2, 5, 2)],
)
def test_the_last_of_five_drafts_were_looked_up(num_taken, num_looked_up, expected):
    assert looked_up_among(num_taken, 5, num_looked_up) == expected


@pytest.mark.parametrize(
    ("drafts", "choices", "num_accepted", "bonus"),
    [
        ([], [7], 0, 7),
        ([1], [1, 9], 1, 9),
        ([1], [2, 9], 0, 2),
        ([1, 2, 3], [1, 2, 3, 4], 3, 4),  # all K accepted: K + 1 tokens
        ([1, 2, 3], [1, 5, 3, 4], 1, 5),  # what agrees after a difference does not count
        ([1, 2, 3], [5, 2, 3, 4], 0, 5),
        ([0, 0], [0, 0, 0], 2, 0),
    ],
)
def test_accept(drafts, choices, num_accepted, bonus):
    verdict = accept(drafts, choices)
    assert (verdict.num_accepted, verdict.bonus_token) == (num_accepted, bonus)


@pytest.mark.parametrize("choices", [[], [1], [1, 2, 3]])
def test_accept_needs_one_choice_more_than_drafts(choices):
    with pytest.raises(ValueError, match="1 draft tokens need 2 choices"):
        accept([1], choices)


@given(st.lists(TOKENS, max_size=8), st.data())
def test_accept_commits_the_targets_own_choices(drafts, data):
    size = len(drafts) + 1
    choices = data.draw(st.lists(TOKENS, min_size=size, max_size=size))
    verdict = accept(drafts, choices)
    committed = [*drafts[: verdict.num_accepted], verdict.bonus_token]
    assert committed == choices[: verdict.num_accepted + 1]
    if verdict.num_accepted < len(drafts):
        assert drafts[verdict.num_accepted] != verdict.bonus_token


@pytest.mark.parametrize(
    ("tokens", "num_remaining", "kept", "finish"),
    [
        ([1, 2], 5, (1, 2), None),
        ([1, 2], 2, (1, 2), FinishReason.LENGTH),
        ([1, 2, 3], 2, (1, 2), FinishReason.LENGTH),
        ([1, 9, 3], 5, (1, 9), FinishReason.STOP_TOKEN),
        ([9, 9], 5, (9,), FinishReason.STOP_TOKEN),
        ([1, 9], 2, (1, 9), FinishReason.STOP_TOKEN),  # the last one allowed: a stop, not length
        ([1, 2, 9], 2, (1, 2), FinishReason.LENGTH),  # a stop beyond the cap was never committed
        ([1, 8, 9], 5, (1, 8), FinishReason.STOP_TOKEN),
    ],
)
def test_cut_block(tokens, num_remaining, kept, finish):
    block = cut_block(tokens, stop_token_ids={8, 9}, num_remaining=num_remaining)
    assert (block.tokens, block.finish) == (kept, finish)


def test_cut_block_refuses_a_row_that_should_have_finished():
    with pytest.raises(ValueError, match="at least 1"):
        cut_block([1], stop_token_ids=(), num_remaining=0)


@given(
    st.lists(TOKENS, min_size=1, max_size=12),
    st.sets(TOKENS, max_size=3),
    st.lists(st.integers(1, 4), min_size=12, max_size=12),
    st.integers(1, 12),
)
def test_cutting_does_not_depend_on_how_tokens_are_grouped(tokens, stops, sizes, cap):
    """One token at a time or in blocks: the same tokens, the same reason."""

    def run(groups):
        log, finish = [], None
        for group in groups:
            if group and finish is None:
                block = cut_block(group, stop_token_ids=stops, num_remaining=cap - len(log))
                log += block.tokens
                finish = block.finish
        return log, finish

    groups, rest = [], tokens
    for size in sizes:
        groups.append(rest[:size])
        rest = rest[size:]
    assert run(groups) == run([[token] for token in tokens])


@pytest.mark.parametrize(
    ("num_wanted", "num_remaining", "cap"),
    [(5, 100, 5), (5, 6, 5), (5, 5, 4), (5, 1, 0), (5, 0, 0), (0, 100, 0)],
)
def test_speculation_cap(num_wanted, num_remaining, cap):
    assert speculation_cap(num_wanted, num_remaining) == cap


@given(st.lists(TOKENS), st.lists(TOKENS))
def test_common_prefix_length(left, right):
    length = common_prefix_length(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == min(
        len(left), len(right)
    )
    assert common_prefix_length(right, left) == length


@pytest.mark.parametrize(
    ("num_unstoppable", "kept", "finish"),
    [
        (0, 1, FinishReason.STOP_TOKEN),
        (1, 3, FinishReason.STOP_TOKEN),
        (3, 4, FinishReason.LENGTH),
        (9, 4, FinishReason.LENGTH),
    ],
)
def test_a_stop_token_that_may_not_end_it_yet_is_a_token_as_any_other(
    num_unstoppable, kept, finish
):
    block = cut_block(
        (7, 1, 7, 2, 7), stop_token_ids={7}, num_remaining=4, num_unstoppable=num_unstoppable
    )
    assert block == Block((7, 1, 7, 2)[:kept], finish)
