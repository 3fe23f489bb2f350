"""What is remembered of how well drafts do, and what it lets expect."""

from __future__ import annotations

from random import Random

import pytest
from scheduler_bench import Bench

from coordinator.scheduler import acceptance
from coordinator.scheduler.acceptance import NUM_LEVELS, AcceptancePool


def a_row():
    bench = Bench(targets=(), drafts=())
    bench.arrive("a")
    return bench.row("a")


@pytest.mark.parametrize(
    ("num_drafts", "num_accepted", "judged"),
    [(5, 0, 1), (5, 2, 3), (5, 5, 5), (1, 1, 1), (1, 0, 1)],
)
def test_drafts_after_the_first_wrong_one_were_never_judged(num_drafts, num_accepted, judged):
    assert acceptance.judged(num_drafts, num_accepted) == judged


@pytest.mark.parametrize("level", [0, 10, 20, 36, NUM_LEVELS - 1])
@pytest.mark.parametrize("num_drafts", [0, 1, 3, 8])
def test_expected_tokens_are_those_of_leviathan(level, num_drafts):
    alpha = level / NUM_LEVELS
    expected = (1 - alpha ** (num_drafts + 1)) / (1 - alpha)
    assert acceptance.expected_tokens(level, num_drafts) == pytest.approx(expected)
    assert acceptance.chance(level, num_drafts) == pytest.approx(alpha**num_drafts)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("num_drafts", [1, 4])
def test_the_rate_of_all_rows_is_learned(alpha, num_drafts):
    pool, random = AcceptancePool(), Random(3)
    for _ in range(1500):
        accepted = accepted_of(random, alpha, num_drafts)
        pool.note(accepted, acceptance.judged(num_drafts, accepted))
    assert pool.rate == pytest.approx(alpha, abs=0.04)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_a_rows_own_record_outweighs_that_of_all(alpha):
    pool, row, random = AcceptancePool(), a_row(), Random(5)
    for _ in range(60):
        accepted = accepted_of(random, alpha, 4)
        row.num_agreed, row.num_judged = acceptance.remembered(row, 4, accepted)
    assert abs(pool.level(row) / NUM_LEVELS - alpha) < abs(pool.rate - alpha) or alpha == pool.rate
    assert pool.level(row) / NUM_LEVELS == pytest.approx(alpha, abs=0.3)
    assert 0 <= pool.level(row) < NUM_LEVELS


def test_a_new_row_is_taken_for_one_like_all():
    pool = AcceptancePool()
    assert pool.level(a_row()) == round(NUM_LEVELS * pool.rate)


def accepted_of(random: Random, alpha: float, num_drafts: int) -> int:
    accepted = 0
    while accepted < num_drafts and random.random() < alpha:
        accepted += 1
    return accepted
