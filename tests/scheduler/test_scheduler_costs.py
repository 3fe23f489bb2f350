"""What is learned from the times of replies: linear costs, means, patience, budgets."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_loop import Loop, Machine, rate_of

from coordinator.scheduler.estimates import LinearCost, Mean
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.passes import PassCosts
from coordinator.scheduler.rows import Batch, Worker
from exspec.core.ids import BatchId, Role, WorkerId

TRUTH = (0.020, 0.0004, 0.0007, 0.001)


def features(random: Random) -> tuple[float, ...]:
    """A pass as they come: rows, tokens fed (mostly two or three a row), context."""
    rows = random.randint(1, 16)
    tokens = rows * random.randint(1, 6)
    return (1.0, rows, tokens, rows * random.uniform(0.1, 2.0))


def seconds(truth, one) -> float:
    return sum(weight * feature for weight, feature in zip(truth, one, strict=True))


def learned(truth, num_passes: int, seed: int = 1, noise: float = 0.05, cost=None) -> LinearCost:
    random = Random(seed)
    cost = cost or LinearCost(len(truth))
    for _ in range(num_passes):
        one = features(random)
        cost.update(one, seconds(truth, one) * random.uniform(1 - noise, 1 + noise))
    return cost


def worst_error(cost: LinearCost, truth, seed: int = 99) -> float:
    random = Random(seed)
    errors = []
    for _ in range(100):
        one = features(random)
        errors.append(abs(cost.predict(one) / seconds(truth, one) - 1))
    return max(errors)


# LinearCost


def test_nothing_is_foretold_before_the_first_measurement():
    cost = LinearCost(3)
    assert (cost.predict((1, 2, 3)), cost.num_seen) == (0, 0)


def test_the_first_measurement_is_believed_and_split():
    cost = LinearCost(3)
    cost.update((1, 4, 0), 0.01)
    assert cost.predict((1, 4, 0)) == pytest.approx(0.01)
    assert 0.001 < cost.predict((1, 0, 0)) < 0.01
    assert cost.predict((1, 8, 0)) > 0.01


@pytest.mark.parametrize("seconds_", [0.0, -1.0])
def test_a_measurement_without_a_time_is_ignored(seconds_):
    cost = LinearCost(2)
    cost.update((1, 1), seconds_)
    assert cost.num_seen == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_linear_truth_is_recovered(seed):
    cost = learned(TRUTH, 300, seed)
    assert worst_error(cost, TRUTH) < 0.06
    assert cost.weight(0) == pytest.approx(TRUTH[0], rel=0.25)
    assert cost.weight(2) == pytest.approx(TRUTH[2], rel=0.35)


def test_a_few_passes_are_enough_for_a_forecast():
    assert worst_error(learned(TRUTH, 12), TRUTH) < 0.25


def test_weights_follow_a_drift():
    cost = learned(TRUTH, 300)
    slower = tuple(2 * weight for weight in TRUTH)
    learned(slower, 60, 2, cost=cost)
    assert worst_error(cost, slower) < 0.15


def test_a_change_of_one_weight_is_followed():
    cost = learned(TRUTH, 300)
    other = (TRUTH[0], TRUTH[1], 4 * TRUTH[2], TRUTH[3])
    learned(other, 200, 3, cost=cost)
    assert worst_error(cost, other) < 0.15


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.floats(0, 9)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_forecast_is_ever_negative(passes):
    """Even where the times fall as the features rise."""
    cost = LinearCost(3)
    for rows, tokens, time in passes:
        cost.update((1, rows, tokens), time)
        assert all(cost.weight(feature) >= 0 for feature in range(3))
        assert cost.predict((1, rows + 1, 0)) >= 0


def test_times_that_fall_with_a_feature_leave_it_at_nothing():
    cost = LinearCost(2)
    for rows in (1, 2, 4, 8) * 20:
        cost.update((1, rows), 0.1 - 0.01 * rows)
    assert cost.weight(1) == pytest.approx(0, abs=1e-3)


def test_a_long_prefill_does_not_spoil_small_passes():
    """Prompts are many tokens at another price each than a round's few."""
    cost = learned(TRUTH, 200)
    for _ in range(6):
        cost.update((1.0, 1.0, 512.0, 0.5), 0.5 * seconds(TRUTH, (1.0, 1.0, 512.0, 0.5)))
        learned(TRUTH, 8, 5, cost=cost)
    assert worst_error(cost, TRUTH) < 0.3


def test_one_pass_that_hung_is_not_believed():
    cost = learned(TRUTH, 200)
    one = (1.0, 8.0, 16.0, 4.0)
    before = cost.predict(one)
    cost.update(one, 100.0)
    assert cost.predict(one) < 1.8 * before
    learned(TRUTH, 60, 7, cost=cost)
    assert worst_error(cost, TRUTH) < 0.15


# Mean


def test_the_first_values_of_a_mean_count_equally():
    mean = Mean(0.1)
    for value in (1.0, 2.0, 6.0):
        mean.update(value)
    assert mean.value == pytest.approx(3.0)


def test_a_mean_forgets():
    mean = Mean(0.1)
    for value in [5.0] * 50 + [1.0] * 60:
        mean.update(value)
    assert mean.value == pytest.approx(1.0, abs=0.01)
    assert Mean(0.1, start=2.0).value == 2.0


# PassCost


@pytest.mark.parametrize(
    ("busy", "elapsed", "queued", "wire"),
    [(0.1, 0.3, 0.0, 0.2), (0.1, 0.3, 0.15, 0.05), (0.3, 0.2, 0.0, 0.0)],
)
def test_the_wire_is_what_nothing_else_explains(busy, elapsed, queued, wire):
    assert PassCost(busy, elapsed, queued).wire_seconds == pytest.approx(wire)


# Company


def costs_in_company(factor: float) -> tuple[PassCosts, Worker]:
    """A target with passes of 50 ms; the later ones, beside drafts, take `factor` times as long."""
    target = Worker(WorkerId("t"), Role.TARGET, num_slots=4, max_length=64, join_index=0)
    costs = PassCosts()
    for index in range(120):
        seconds_ = 0.05 * (factor if index >= 60 else 1.0)
        batch = Batch(BatchId(index), target, (), (), is_overlapped=index >= 60)
        costs.learn(batch, (1.0, 4.0, 8.0, 0.5), PassCost(seconds_, seconds_))
    return costs, target


def test_what_passes_in_company_take_longer_is_not_taken_for_their_own_time():
    costs, target = costs_in_company(1.5)
    assert costs.crowding(target) == pytest.approx(1.5, rel=0.1)
    assert costs.seconds(target, (1.0, 4.0, 8.0, 0.5)) == pytest.approx(0.05, rel=0.1)


def test_passes_in_company_that_are_faster_than_foretold_correct_the_forecast():
    """To believe that company helps would call for more groups, in which all have company."""
    costs, target = costs_in_company(0.6)
    assert costs.crowding(target) == 1.0
    assert costs.seconds(target, (1.0, 4.0, 8.0, 0.5)) == pytest.approx(0.03, rel=0.1)


def test_a_usual_draft_is_priced_by_the_passes_it_took_not_by_the_tokens_it_brought():
    """Most of them are looked up."""
    draft = Worker(WorkerId("d"), Role.DRAFT, num_slots=4, max_length=64, join_index=0)
    costs = PassCosts()
    for _ in range(50):
        costs.note_usual_draft(draft, (8, 0, 8), (3, 0, 1), PassCost(0.01, 0.01))
    assert costs.usual_round_features(draft, 4) == pytest.approx((1, 3, 8, 8))


# Patience


def test_patience_is_twice_the_draft_and_one_verify():
    machine = Machine()
    loop = Loop(machine, lambda now: 0.5, "4")
    loop.fill(4)
    loop.run_until(80)
    _, last = loop.drafts[-1]
    fed = sum(order.end - order.start for order in last.orders)
    draft = machine.draft_seconds(4, 16 + fed) + machine.wire
    verify = machine.verify_seconds(20)
    assert last.patience_seconds == pytest.approx(2 * draft + verify, rel=0.15)


def test_patience_is_a_constant_before_costs_are_known():
    loop = Loop(Machine(), lambda now: 0.5, "4")
    loop.fill(1)
    loop.run_until(2)
    assert loop.drafts[0][1].patience_seconds == 2.0


def test_a_draft_worker_that_hangs_costs_one_patience_and_no_more():
    """Rounds go on without it, and with it once it answers."""
    loop = Loop(Machine(), lambda now: 0.7, "4")
    loop.fill(4)
    loop.run_until(60)
    loop.hang("d", 3.0)
    during = loop.run_until(80)
    assert [one.num_drafts for one in during[3:]] == [0] * 77
    gaps = [b.at - a.at for a, b in pairwise(during)]
    assert max(gaps) < 0.2
    after = loop.run_until(100)
    assert after[-1].num_drafts == 4


# Budgets


def test_prefill_stretches_a_pass_about_threefold():
    machine = Machine()
    loop = Loop(machine, lambda now: 0.5, "0", batch_size=8)
    loop.fill(2)
    for _ in range(5):
        loop.run_until(20)
        loop.fill(1, length=900)
    passes = loop.run_until(60)
    plain = min(one.seconds for one in passes)
    longest = max(one.seconds for one in passes)
    assert 1.5 * plain < longest < 4 * plain


def test_a_slow_draft_worker_does_not_slow_a_target_down_by_much():
    """Rounds of a worker that hardly ever answers in time are nearly those of plain decoding."""
    slow = Machine(draft=1.0)
    loop = Loop(slow, lambda now: 0.9, "auto")
    loop.fill(4)
    loop.run_until(100)
    assert rate_of(loop.run_until(200)) > 0.95 * slow.rate(4, 0, 0.9)
