"""Whole generations over fake workers: the tokens are the truth, in no more rounds than needed."""

from __future__ import annotations

import pytest
import scheduler_fakes
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_fakes import STOP_TOKEN, VOCABULARY_SIZE, expected_log, target_choice
from scheduler_plan import WorldPlan
from scheduler_random import run_random, world_of
from scheduler_world import World

from coordinator.scheduler.commands import Verify
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.scheduler import SchedulerLimits
from exspec.core.ids import Role


def calm_world(num_targets=1, num_drafts=1, policy="eqspec", rule="5", **limits) -> World:
    world = world_of(WorldPlan(policy, SchedulerLimits(**limits), rule))
    for index in range(num_targets):
        world.join(f"t{index}", Role.TARGET, 8, 200)
    for index in range(num_drafts):
        world.join(f"d{index}", Role.DRAFT, 16, 200)
    return world


def run_calm(world: World) -> int:
    """Deliver everything in order; returns how many verify batches that took."""
    num_verifies = 0
    while world.busy:
        worker_id = world.busy[0]
        num_verifies += isinstance(world.flights_of(worker_id)[0].command, Verify)
        world.deliver(worker_id)
    world.settle()
    return num_verifies


def prompt_with_long_output(num_new: int) -> list[int]:
    """A prompt whose plain decoding does not stop early."""
    for first in range(1, VOCABULARY_SIZE):
        for second in range(1, VOCABULARY_SIZE):
            log = expected_log([first, second], 2 + num_new)
            if STOP_TOKEN not in log:
                return [first, second]
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
def test_a_perfect_draft_commits_k_plus_one_a_round(monkeypatch, num_drafts):
    monkeypatch.setattr(scheduler_fakes, "draft_choice", target_choice)
    monkeypatch.setattr(scheduler_fakes, "draft_length", lambda prefix, number: number)
    num_new = 1 + 3 * (num_drafts + 1)
    world = calm_world(rule=str(num_drafts))
    world.arrive("a", prompt_with_long_output(num_new), 2 + num_new)
    assert run_calm(world) == 1 + 3


def test_a_useless_draft_commits_one_a_round(monkeypatch):
    def never(prefix):
        return (target_choice(prefix) + 1) % VOCABULARY_SIZE

    monkeypatch.setattr(scheduler_fakes, "draft_choice", never)
    world = calm_world()
    world.arrive("a", prompt_with_long_output(8), 10)
    assert run_calm(world) == 8


def test_plain_decoding_commits_one_a_round():
    world = calm_world(num_drafts=0)
    world.arrive("a", prompt_with_long_output(8), 10)
    assert run_calm(world) == 8


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12),
    num_targets=st.integers(1, 3),
    num_drafts=st.integers(0, 2),
    policy=st.sampled_from(list(POLICIES)),
    batch_size=st.integers(1, 8),
    max_prefill_tokens=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_calm_runs_end_within_the_rounds_of_plain_decoding(
    sizes, num_targets, num_drafts, policy, batch_size, max_prefill_tokens
):
    world = calm_world(
        num_targets,
        num_drafts,
        policy,
        batch_size=batch_size,
        window_size=8,
        max_prefill_tokens=max_prefill_tokens,
    )
    for index, (prompt_length, num_new) in enumerate(sizes):
        prompt = [(index * 7 + place) % VOCABULARY_SIZE for place in range(prompt_length)]
        world.arrive(f"s{index}", prompt, prompt_length + num_new)
    # One token a round, and at worst one prompt token a round while prefills share the budget.
    bound = sum(prompt_length + num_new for prompt_length, num_new in sizes)
    assert run_calm(world) <= bound


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(100, 150))
def test_random_runs_with_faults_give_the_truth(seed, policy):
    run_random(seed, num_steps=120, policy=policy)


def test_a_run_is_a_function_of_its_events():
    first, second = (run_random(seed=3, num_steps=80) for _ in range(2))
    assert first.num_steps == second.num_steps
    assert {n: g.log for n, g in first.generations.items()} == {
        n: g.log for n, g in second.generations.items()
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_request_gets_does_not_depend_on_the_policy(policy):
    world = calm_world(2, 1, policy, "auto", batch_size=3, window_size=6)
    for index in range(8):
        world.arrive(f"s{index}", [1 + index, 2], 12 + index, group="ab"[index % 2])
    run_calm(world)
    logs = [generation.log for generation in world.generations.values()]
    assert logs == [expected_log([1 + index, 2], 12 + index) for index in range(8)]
