"""The rule that learns, in a closed loop whose best K is known: what it ends at, and how calmly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import scheduler_fakes
from scheduler_bench import Bench
from scheduler_fakes import STOP_TOKEN, VOCABULARY_SIZE, expected_log, target_choice
from scheduler_loop import Loop, Machine, rate_of, usual
from scheduler_plan import WorldPlan
from scheduler_random import world_of

from coordinator.scheduler.commands import Draft, Verify
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.scheduler import SchedulerLimits
from coordinator.scheduler.speculation import FixedSpeculation, RoundPlan
from exspec.core.ids import Role

CHEAP = Machine()
DEAR = Machine(draft=0.004, draft_step=0.006)
BUSY = Machine(verify=0.010, verify_token=0.002)
"""Its target computes at its limit: every token more in a pass costs."""
USELESS = Machine(draft=0.010, draft_step=0.010)


def settled(machine, num_rows, alpha, rule="auto", seed=1) -> list:
    """The rounds after it had time to learn."""
    loop = Loop(machine, lambda now: alpha, rule, batch_size=num_rows, seed=seed)
    loop.fill(num_rows)
    loop.run_until(200)
    return loop.run_until(250)


@pytest.mark.parametrize(
    ("machine", "num_rows", "alpha"),
    [
        (CHEAP, 1, 0.3),
        (CHEAP, 1, 0.9),
        (CHEAP, 4, 0.7),
        (CHEAP, 8, 0.5),
        (CHEAP, 8, 0.9),
        (DEAR, 4, 0.7),
        (DEAR, 8, 0.9),
        (BUSY, 4, 0.9),
        (BUSY, 8, 0.7),
        (USELESS, 4, 0.5),
        (USELESS, 8, 0.9),
    ],
    ids=str,
)
def test_it_ends_at_the_k_with_the_greatest_tokens_per_second(machine, num_rows, alpha):
    rounds = settled(machine, num_rows, alpha)
    best = machine.best(num_rows, alpha)
    assert machine.rate(num_rows, usual(rounds), alpha) > 0.97 * best
    assert rate_of(rounds) > 0.9 * best  # tries and the luck of acceptance included


@pytest.mark.parametrize("machine", [CHEAP, DEAR, BUSY, USELESS], ids=str)
def test_it_is_never_much_worse_than_plain_decoding(machine):
    loop = Loop(machine, lambda now: 0.05, batch_size=4)
    loop.fill(4)
    loop.run_until(20)
    assert rate_of(loop.run_until(300)) > 0.93 * machine.rate(4, 0, 0.05)


@pytest.mark.parametrize(("num_rows", "alpha"), [(1, 0.5), (4, 0.7), (8, 0.1), (8, 0.5)])
def test_it_does_not_flap(num_rows, alpha):
    """Changes are few, and few rounds are spent on a K that is clearly worse."""
    numbers = [one.num_drafts for one in settled(CHEAP, num_rows, alpha)]
    switches = sum(a != b for a, b in pairwise(numbers))
    assert switches < 0.25 * len(numbers)
    best = CHEAP.best(num_rows, alpha)
    worse = [k for k in numbers if CHEAP.rate(num_rows, k, alpha) < 0.93 * best]
    assert len(worse) < 0.1 * len(numbers)


def test_drafts_that_do_not_pay_are_given_up_and_hardly_tried_again():
    numbers = [one.num_drafts for one in settled(USELESS, 4, 0.3)]
    assert numbers.count(0) >= 0.97 * len(numbers)


def test_it_gives_up_when_acceptance_falls():
    loop = Loop(CHEAP, lambda now: 0.9, batch_size=8)
    loop.fill(8)
    assert usual(loop.run_until(200)[-50:]) >= 4
    loop.alpha = lambda now: 0.05
    loop.run_until(150)
    assert usual(loop.run_until(50)) == 0


@pytest.mark.parametrize("num_rows", [1, 8])
def test_it_recovers_when_acceptance_rises(num_rows):
    loop = Loop(CHEAP, lambda now: 0.1, batch_size=num_rows)
    loop.fill(num_rows)
    assert usual(loop.run_until(200)[-50:]) == 0
    loop.alpha = lambda now: 0.9
    loop.run_until(300)
    rounds = loop.run_until(50)
    assert CHEAP.rate(num_rows, usual(rounds), 0.9) > 0.9 * CHEAP.best(num_rows, 0.9)


def test_it_follows_a_draft_worker_that_becomes_faster():
    loop = Loop(USELESS, lambda now: 0.7, batch_size=2)
    loop.fill(2)
    loop.run_until(200)
    loop.machine = Machine(draft=0.0005, draft_step=0.0005)
    loop.run_until(500)
    best = loop.machine.best(2, 0.7)
    assert loop.machine.rate(2, usual(loop.run_until(60)), 0.7) > 0.9 * best


@pytest.mark.parametrize("most", [0, 1, 3])
def test_its_bound_holds(most):
    rounds = settled(CHEAP, 2, 0.9, f"auto:{most}")
    assert max(one.num_drafts for one in rounds) == most


def test_the_speedup_it_reports_is_near_the_real_one():
    loop = Loop(CHEAP, lambda now: 0.8, batch_size=4)
    loop.fill(4)
    loop.run_until(400)
    real = CHEAP.best(4, 0.8) / CHEAP.rate(4, 0, 0.8)
    assert loop.scheduler.rule.speedup.predicted == pytest.approx(real, rel=0.2)


def test_several_groups_learn_too():
    machine = Machine(verify=0.02, draft=0.002, draft_step=0.003)
    rates = {}
    for rule in ("auto", *"01234"):
        loop = Loop(machine, lambda now: 0.7, rule, "exspec", 4, 16)
        loop.fill(16)
        loop.run_until(200)
        rates[rule] = rate_of(loop.run_until(200))
    assert rates["auto"] > 0.93 * max(rates.values())


# After rounds without drafts


class NowAndThen(FixedSpeculation):
    """Three tokens, with pauses."""

    num_rounds = 0

    def plan(self, target, num_rows, candidates, costs):
        NowAndThen.num_rounds += 1
        number = 3 if NowAndThen.num_rounds % 9 < 3 else 0
        return RoundPlan(tuple(min(number, one.most) for one in candidates))


def prompt_without_a_stop(num_new: int) -> list[int]:
    for first in range(1, VOCABULARY_SIZE):
        for second in range(1, VOCABULARY_SIZE):
            if STOP_TOKEN not in expected_log([first, second], 2 + num_new):
                return [first, second]
    raise AssertionError("no such prompt")


def test_after_rounds_without_drafts_the_worker_catches_up_and_drafts_as_well_as_before(
    monkeypatch,
):
    """With a draft that is always right, every draft is accepted, also right after a pause."""
    monkeypatch.setattr(scheduler_fakes, "draft_choice", target_choice)
    monkeypatch.setattr(scheduler_fakes, "draft_length", lambda prefix, number: number)
    monkeypatch.setattr(NowAndThen, "num_rounds", 0)
    world = world_of(WorldPlan("eqspec", SchedulerLimits(), "3"))
    world.core.rule = world.core._rounds._rule = NowAndThen(3)
    world.shadow.fixed_drafts = None
    world.join("t", Role.TARGET, 4, 200)
    world.join("d", Role.DRAFT, 4, 200)
    world.arrive("a", prompt_without_a_stop(40), 42)
    held, gaps = 0, []
    while world.busy:
        (worker,) = world.busy
        command = world.flights_of(worker)[0].command
        (order,) = command.orders
        before = len(world.generations["a"].log)
        if isinstance(command, Draft):
            assert order.start == held  # what it holds already is not sent again
            gaps.append(order.end - held)
            held = order.end
        world.deliver(worker)
        if isinstance(command, Verify) and world.generations["a"].is_live:
            grown = len(world.generations["a"].log) - before
            assert grown == order.num_draft_tokens + 1
    world.settle()
    assert max(gaps) > 5  # it had something to catch up on


def test_the_loop_catches_up_too():
    """Under the rule that learns, over pauses of hundreds of rounds."""
    loop = Loop(USELESS, lambda now: 0.6, batch_size=2)
    loop.fill(2)
    loop.run_until(400)
    held: dict[str, int] = {}
    for _, command in loop.drafts:
        for order in command.orders:
            name = order.key.sequence_id
            assert order.start == held.get(name, 0)
            held[name] = order.end
    assert len(loop.drafts) > 5


def test_nothing_is_kept_of_targets_that_left():
    bench = Bench(rule="auto", drafts=())
    for i in range(20):
        bench.join(f"d{i}", Role.DRAFT)
        bench.arrive(f"a{i}", max_length=1000)
        for _ in range(8):
            bench.verified(f"t{i}" if i else "t", cost=PassCost(0.01, 0.012))
            while bench.flights[f"d{i}"]:
                bench.drafted(f"d{i}", cost=PassCost(0.001, 0.002))
        assert bench.rule._habits
        bench.cancel(f"a{i}")
        bench.join(f"t{i + 1}", Role.TARGET)
        bench.lose(f"t{i}" if i else "t")
        bench.lose(f"d{i}")
        assert not bench.rule._habits
