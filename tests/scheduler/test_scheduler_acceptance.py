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
def test_at_first_expected_tokens_are_those_of_leviathan(level, num_drafts):
    alpha = level / NUM_LEVELS
    expected = (1 - alpha ** (num_drafts + 1)) / (1 - alpha)
    pool = AcceptancePool()
    assert pool.expected_tokens(level, num_drafts) == pytest.approx(expected)
    assert pool.chance(level, num_drafts) == pytest.approx(alpha**num_drafts)


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


def _learned(course, *, num_planned: int, num_rounds: int = 1500) -> tuple[AcceptancePool, int]:
    """A pool after rounds of one kind of row, and that row's level."""
    pool, random = AcceptancePool(), Random(7)
    for _ in range(num_rounds):
        accepted = course(random)
        pool.note(accepted, acceptance.judged(num_planned, accepted))
        pool.note_places(round(NUM_LEVELS * pool.rate), num_planned, accepted)
    return pool, round(NUM_LEVELS * pool.rate)


def test_what_comes_in_bursts_is_expected_to_go_far_where_it_began_well():
    """Half of the rounds repeat a passage, the others are guesses: no one rate tells both."""

    def course(random: Random) -> int:
        return accepted_of(random, 0.9 if random.random() < 0.5 else 0.2, 8)

    pool, level = _learned(course, num_planned=8)
    truth = [0.5 * (0.9**k + 0.2**k) for k in range(9)]
    for k in (1, 2, 4, 8):
        assert pool.chance(level, k) == pytest.approx(truth[k], abs=0.06)
    assert pool.expected_tokens(level, 8) == pytest.approx(sum(truth), rel=0.1)
    assert AcceptancePool().expected_tokens(level, 8) > 1.15 * sum(truth)


def test_drafts_that_end_early_are_not_expected_to_go_far():
    """All that is proposed is right nearly always, but seldom are more than two proposed."""

    def course(random: Random) -> int:
        made = min(8, 1 + accepted_of(random, 0.4, 8))
        return min(made, accepted_of(random, 0.95, 8))

    pool, level = _learned(course, num_planned=8)
    truth = 1 + sum(0.4 ** (k - 1) * 0.95**k for k in range(1, 9))
    assert pool.expected_tokens(level, 8) == pytest.approx(truth, rel=0.1)


def test_places_that_were_not_reached_are_like_those_before_them():
    def course(random: Random) -> int:
        return accepted_of(random, 0.9 if random.random() < 0.5 else 0.2, 3)

    pool, level = _learned(course, num_planned=3)
    conditional = [pool.chance(level, k + 1) / pool.chance(level, k) for k in range(8)]
    assert conditional[1] > conditional[0] + 0.1
    assert conditional[5] == pytest.approx(conditional[2])


def test_drafts_that_are_never_right_are_not_expected_to_be():
    pool = AcceptancePool(num_agreed=0.0)
    for _ in range(300):
        pool.note(0, 1)
        pool.note_places(0, 8, 0)
    assert pool.expected_tokens(0, 8) == 1
    assert pool.expected_tokens(4, 8) < 1.2
