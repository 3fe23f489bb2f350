"""Seeded random runs of a `World`: the same moves that Hypothesis makes, without its shrinking.

Used for planted faults and, run as a program, for recording the traces in `tests/traces`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from scheduler_world import World

from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.replay import Recorder
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

TRACES = Path(__file__).parents[1] / "traces"
FAULTS = [status for status in EntryStatus if status is not EntryStatus.OK]


def random_limits(random: Random) -> SchedulerLimits:
    return SchedulerLimits(
        batch_size=random.randint(1, 4),
        num_speculative_tokens=random.randint(0, 5),
        max_prefill_tokens=random.randint(1, 24),
    )


def run_random(seed: int, num_steps: int = 60, stream=None) -> World:
    """One run, settled at its end; recorded to `stream` if there is one."""
    random = Random(seed)
    limits = random_limits(random)
    scheduler = Scheduler(EqSpec(), limits)
    world = World(scheduler if stream is None else Recorder(scheduler, stream), limits)
    world.join("t0", Role.TARGET, random.randint(1, 5), 40)
    world.join("d0", Role.DRAFT, random.randint(1, 5), random.choice([12, 40]))
    for _ in range(num_steps):
        random_step(world, random)
    world.settle()
    return world


def random_step(world: World, random: Random) -> None:
    kind = random.choices(
        ["deliver", "arrive", "cancel", "time_out", "join", "lose", "drain"],
        [60, 14, 3, 4, 3, 2, 1],
    )[0]
    busy = sorted(world.flights)
    if kind == "deliver" and busy:
        worker_id = random.choice(busy)
        world.deliver(worker_id, _random_faults(world, random, worker_id))
    elif kind == "time_out" and busy:
        worker_id = random.choice(busy)
        num_entries = len(world.flights[worker_id].entries)
        world.time_out(worker_id, random.randint(0, num_entries))
    elif kind == "arrive":
        _arrive(world, random)
    elif kind == "cancel" and world.generations:
        world.cancel(random.choice(sorted(world.generations)))
    elif kind == "join":
        _join(world, random)
    elif kind == "lose" and world.workers:
        world.lose(random.choice(sorted(world.workers)))
    elif kind == "drain" and world.workers:
        world.drain(random.choice(sorted(world.workers)))


def _random_faults(world: World, random: Random, worker_id: str) -> dict[int, EntryStatus]:
    if random.random() < 0.7:
        return {}
    indices = range(len(world.flights[worker_id].entries))
    return {index: random.choice(FAULTS) for index in indices if random.random() < 0.3}


def _arrive(world: World, random: Random) -> None:
    name = f"s{len(world.generations)}"
    prompt = [random.randrange(1, 40) for _ in range(random.randint(1, 20))]
    max_length = len(prompt) + random.randint(1, 16)
    world.arrive(name, prompt, max_length, random.choice([None, None, 0, 2, 7]))


def _join(world: World, random: Random) -> None:
    role = random.choice([Role.TARGET, Role.DRAFT])
    worker_id = f"{role.value[0]}{random.randrange(4)}"
    if worker_id not in world.workers:
        world.join(worker_id, role, random.randint(1, 5), random.choice([12, 25, 40]))


def record(path: Path, seed: int, num_steps: int) -> None:
    """Write a trace; only for a change that is meant to change what is scheduled."""
    with path.open("w", encoding="utf-8") as stream:
        run_random(seed, num_steps, stream)


if __name__ == "__main__":
    record(TRACES / "eqspec-faults.jsonl", seed=13, num_steps=260)
