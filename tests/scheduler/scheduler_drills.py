"""Runs of a `World` that press on one promise each, with checks of their own.

The queue drill watches who is served next, from the outside; the window drill lets many rows of
few lengths compete for small batches, so that the ageing rule of the shadow has something to see;
in the feed drill draft workers lack much.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from scheduler_accounts import require
from scheduler_plan import WorldPlan
from scheduler_random import random_cost, world_of
from scheduler_world import World

from coordinator.scheduler.scheduler import SchedulerLimits
from exspec.core.ids import Role


@dataclass
class Queued:
    """One arrival as its client sees it."""

    priority: int
    group: str
    order: int
    num_ahead: int
    """Of its own group, when it came."""


class QueueWatch:
    """Who waits, who was served since; the target serves one sequence at a time."""

    def __init__(self, world: World, *, is_fair: bool) -> None:
        """`is_fair`: all arrivals have one priority, so that groups must alternate."""
        self._world = world
        self._is_fair = is_fair
        self._waiting: dict[str, Queued] = {}
        self._served: list[tuple[int, str]] = []
        """(arrivals before it was served, its group)."""

    def arrive(self, name: str, priority: int, group: str) -> None:
        ahead = sum(1 for one in self._waiting.values() if group and one.group == group)
        order = len(self._world.generations)
        self._waiting[name] = Queued(priority, group or name, order, ahead)
        self._world.arrive(name, [1, 2, 3], 5, None, priority, group)
        self.look()

    def cancel(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._world.cancel(name)
        self.look()

    def deliver(self) -> None:
        self._world.deliver("t0")
        self.look()

    def look(self) -> None:
        """Check whoever was given the place since the last look."""
        for name in self._world.shadow.members["t0"].holds:
            if name in self._waiting:
                self._check(name, self._waiting.pop(name))

    def _check(self, name: str, one: Queued) -> None:
        self._served.append((len(self._world.generations), one.group))
        for other_name, other in self._waiting.items():
            facts = (name, one, other_name, other)
            require(one.priority <= other.priority, "queue-priority", *facts)
            if one.group == other.group and one.priority == other.priority:
                require(one.order < other.order, "queue-order", *facts)
            elif self._is_fair:
                since = [g for at, g in self._served if at > other.order and g == one.group]
                require(len(since) <= other.num_ahead + 2, "queue-fairness", *facts, since)


def run_queue(seed: int) -> World:
    """A target with one place; either priorities, or groups of clients, compete for it."""
    random = Random(seed)
    is_fair = bool(seed % 2)
    priorities, groups = ([0], ["", "g", "h"]) if is_fair else ([0, 1, 2], ["", "g"])
    limits = SchedulerLimits(batch_size=1, max_prefill_tokens=100)
    world = world_of(WorldPlan("eqspec", limits, "0"))
    watch = QueueWatch(world, is_fair=is_fair)
    world.join("t0", Role.TARGET, 1, 40)
    for _ in range(60):
        kind = random.choice(["arrive", "burst", "deliver", "deliver", "deliver", "cancel"])
        if kind == "deliver" and world.busy:
            watch.deliver()
        elif kind == "cancel" and not is_fair and world.generations:
            watch.cancel(random.choice(sorted(world.generations)))
        elif world.core.num_waiting < 12:
            group = random.choice(groups)
            for _ in range(6 if kind == "burst" else 1):
                name = f"s{len(world.generations)}"
                watch.arrive(name, random.choice(priorities), group)
    world.settle()
    return world


def run_window(seed: int) -> World:
    """EXSPEC with a full window: nobody is held back for lack of budget or room in flight."""
    random = Random(seed)
    batch_size = random.randint(1, 4)
    window_size = batch_size * random.randint(2, 4)
    limits = SchedulerLimits(
        batch_size=batch_size,
        window_size=window_size,
        max_wait_rounds=window_size // batch_size - 1 + random.randint(0, 1),
        max_batches_in_flight=9,
        max_prefill_tokens=10_000,
        max_mixed_prefill_tokens=10_000,
    )
    world = world_of(WorldPlan("exspec", limits, random.choice(["0", "2"])))
    world.join("t0", Role.TARGET, 2 * window_size, 300, random.choice(["slots", "padded"]))
    world.join("d0", Role.DRAFT, 2 * window_size, 300)
    costly = random.random() < 0.5
    for _ in range(100):
        while sum(generation.is_live for generation in world.generations.values()) < window_size:
            _arrive(world, random)
        if random.random() < 0.03:
            world.cancel(random.choice(sorted(world.generations)))
        else:
            cost = random_cost(random) if costly else None
            world.deliver(random.choice(world.busy), cost=cost)
    world.settle()
    return world


def run_feed(seed: int) -> World:
    """Long prompts that a draft worker is fed piece by piece, while their callers come and go."""
    random = Random(seed)
    limits = SchedulerLimits(
        batch_size=4,
        max_batches_in_flight=random.randint(1, 2),
        max_prefill_tokens=100,
        max_mixed_prefill_tokens=random.randint(1, 4),
    )
    world = world_of(WorldPlan("eqspec", limits, "2"))
    world.join("t0", Role.TARGET, 4, 60)
    world.join("d0", Role.DRAFT, 4, 60)
    for _ in range(60):
        if world.core.num_waiting + world.core.num_running < 4:
            prompt = [random.randrange(1, 40) for _ in range(random.randint(5, 20))]
            world.arrive(f"s{len(world.generations)}", prompt, len(prompt) + 20)
        elif random.random() < 0.1:
            world.cancel(random.choice(sorted(world.generations)))
        else:
            world.deliver(random.choice(world.busy))
    world.settle()
    return world


def run_deaf(seed: int) -> World:
    """A draft worker that is deaf most of the time: what is waited for becomes overdue.

    Nothing may wait for it beyond that. It never has to answer for a target to go on.
    """
    random = Random(seed)
    limits = SchedulerLimits(
        batch_size=random.choice([1, 2, 2, 4]),
        window_size=6,
        max_batches_in_flight=random.choice([1, 1, 2, 3]),
        max_mixed_prefill_tokens=random.choice([None, None, 3]),
    )
    world = world_of(WorldPlan(random.choice(["eqspec", "exspec", "exspec"]), limits, "2"))
    world.join("t0", Role.TARGET, 6, 90)
    world.join("d0", Role.DRAFT, random.randint(3, 6), 90)
    while len(world.generations) < 12 or any(one.is_live for one in world.generations.values()):
        none_left = not any(one.is_live for one in world.generations.values())
        if len(world.generations) < 12 and (none_left or random.random() < 0.3):
            prompt = [random.randrange(1, 40) for _ in range(random.randint(1, 20))]
            world.arrive(f"s{len(world.generations)}", prompt, len(prompt) + random.randint(1, 20))
            continue
        waited_for = _waited_for(world)
        is_idle = "t0" not in world.busy
        require(waited_for or not is_idle, "waits-for-the-deaf", world.num_steps)
        if not is_idle and "d0" in world.busy and random.random() < 0.3:
            world.deliver("d0")  # it was only slow
        elif waited_for and (is_idle or random.random() < 0.3):
            world.overdue("d0", random.choice(waited_for))
        else:
            world.deliver("t0")
    world.settle()
    return world


def _waited_for(world: World) -> list[int]:
    """Its batches that were not given up yet."""
    overdue = world.shadow.members["d0"].overdue
    batch_ids = [flight.command.batch_id for flight in world.flights_of("d0")]
    return [index for index, batch_id in enumerate(batch_ids) if batch_id not in overdue]


def _arrive(world: World, random: Random) -> None:
    """Prompts of three lengths that no pass takes for alike, and outputs that vary little."""
    length = random.choice([1, 1, 1, 100, 200])
    name = f"s{len(world.generations)}"
    prompt = [random.randrange(1, 40) for _ in range(length)]
    world.arrive(name, prompt, length + random.randint(10, 40))
