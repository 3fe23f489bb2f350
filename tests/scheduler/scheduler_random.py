"""Seeded random runs of a `World`: the same moves that Hypothesis makes, without its shrinking.

Used for planted faults and, run as a program, for recording the traces in `tests/traces`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from scheduler_plan import WorldPlan
from scheduler_world import World

from coordinator.scheduler.events import PassCost
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.replay import Recorder
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

TRACES = Path(__file__).parents[1] / "traces"
FAULTS = [status for status in EntryStatus if status is not EntryStatus.OK]
RULES = ["auto", "auto:3", "0", "2", "5", "[[1,2,4],[3,4,1]]"]


def random_limits(random: Random) -> SchedulerLimits:
    batch_size = random.randint(1, 4)
    window_size = random.choice([batch_size, batch_size + random.randint(0, 7)])
    least_wait = -(-window_size // batch_size) - 1
    return SchedulerLimits(
        batch_size=batch_size,
        window_size=window_size,
        max_wait_rounds=random.choice([None, least_wait, least_wait + random.randint(0, 2)]),
        max_batches_in_flight=random.randint(1, 4),
        max_prefill_tokens=random.randint(1, 24),
        max_mixed_prefill_tokens=random.choice([None, random.randint(1, 24)]),
    )


def random_plan(random: Random, policy: str | None = None, rule: str | None = None) -> WorldPlan:
    return WorldPlan(
        policy or random.choice(list(POLICIES)), random_limits(random), rule or random.choice(RULES)
    )


def world_of(plan: WorldPlan, stream=None) -> World:
    """An empty world; recorded to `stream` if there is one."""
    rule = speculation_rule(plan.rule)
    scheduler = Scheduler(POLICIES[plan.policy](), plan.limits, speculation=rule)
    return World(scheduler if stream is None else Recorder(scheduler, stream), plan)


def run_random(seed: int, num_steps: int = 60, stream=None, **plan) -> World:
    """One run, settled at its end; `plan` fixes the policy or the rule."""
    random = Random(seed)
    world = world_of(random_plan(random, **plan), stream)
    _join(world, random, "t0", Role.TARGET, 40)
    _join(world, random, "d0", Role.DRAFT, random.choice([12, 40]))
    for _ in range(num_steps):
        random_step(world, random)
    world.settle()
    return world


def random_step(world: World, random: Random) -> None:
    kind = random.choices(
        ["deliver", "overdue", "arrive", "burst", "cancel", "time_out", "join", "lose", "drain"],
        [60, 5, 12, 2, 3, 3, 3, 2, 1],
    )[0]
    if kind == "deliver" and world.busy:
        worker_id = random.choice(world.busy)
        world.deliver(worker_id, _random_faults(world, random, worker_id), random_cost(random))
    elif kind == "overdue" and world.busy_drafts:
        worker_id = random.choice(world.busy_drafts)
        world.overdue(worker_id, random.randrange(len(world.flights_of(worker_id))))
    elif kind == "time_out" and world.busy:
        worker_id = random.choice(world.busy)
        index = random.randrange(len(world.flights_of(worker_id)))
        num_entries = len(world.flights_of(worker_id)[index].entries)
        world.time_out(worker_id, index, random.randint(0, num_entries))
    elif kind in ("arrive", "burst"):
        for _ in range(1 if kind == "arrive" else 5):
            _arrive(world, random)
    elif kind == "cancel" and world.generations:
        world.cancel(random.choice(sorted(world.generations)))
    elif kind == "join":
        _join_another(world, random)
    elif kind == "lose" and world.workers:
        world.lose(random.choice(sorted(world.workers)))
    elif kind == "drain" and world.workers:
        world.drain(random.choice(sorted(world.workers)))


def random_cost(random: Random) -> PassCost | None:
    if random.random() < 0.2:
        return None
    busy = random.choice([0.001, 0.01, 0.1]) * random.random()
    queued = random.choice([0.0, busy])
    return PassCost(busy, busy + queued + 0.002 * random.random(), queued)


def _random_faults(world: World, random: Random, worker_id: str) -> dict[int, EntryStatus]:
    if random.random() < 0.7:
        return {}
    indices = range(len(world.flights_of(worker_id)[0].entries))
    return {index: random.choice(FAULTS) for index in indices if random.random() < 0.3}


def _arrive(world: World, random: Random) -> None:
    name = f"s{len(world.generations)}"
    prompt = [random.randrange(1, 40) for _ in range(random.choice([1, 3, random.randint(1, 20)]))]
    world.arrive(
        name,
        prompt,
        len(prompt) + random.randint(1, 16),
        random.choice([None, None, None, 0, 2, 7]),
        random.choice([0, 0, 1, -1]),
        random.choice(["", "g", "h"]),
    )


def _join_another(world: World, random: Random) -> None:
    role = random.choice([Role.TARGET, Role.DRAFT])
    worker_id = f"{role.value[0]}{random.randrange(4)}"
    if worker_id not in world.workers:
        _join(world, random, worker_id, role, random.choice([12, 25, 40]))


def _join(world: World, random: Random, worker_id: str, role: Role, max_length: int) -> None:
    num_slots = random.choice([random.randint(1, 5), random.randint(4, 12)])
    world.join(worker_id, role, num_slots, max_length, random.choice(["slots", "padded"]))


def record(path: Path, seed: int, num_steps: int, **plan) -> None:
    """Write a trace; only for a change that is meant to change what is scheduled."""
    with path.open("w", encoding="utf-8") as stream:
        run_random(seed, num_steps, stream, **plan)


if __name__ == "__main__":
    record(TRACES / "eqspec-faults.jsonl", 40, 260, policy="eqspec", rule="auto")
    record(TRACES / "exspec-faults.jsonl", 53, 260, policy="exspec", rule="auto")
