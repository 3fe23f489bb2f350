"""Modelled workers: one server each, first come first served, at the end of a wire.

When a batch is answered follows from when it was sent and what went before it; nothing is decided
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from coordinator.scheduler.commands import Draft, Verify
from coordinator.scheduler.events import PassCost
from coordinator.simulation.costs import (
    Costs,
    WireCosts,
    alignment_seconds,
    draft_seconds,
    verify_seconds,
)
from exspec.core.ids import Role, WorkerId


@dataclass(frozen=True, slots=True)
class Answer:
    """When the coordinator hears of a batch, and what it is told about its cost."""

    at_seconds: float
    cost: PassCost


@dataclass(slots=True)
class ModelledWorker:
    """One worker from joining to leaving. Changed by `Fleet` only; seconds of virtual time.

    A stream keeps its order, whatever the jitter: `last_arrival` and `last_answer` hold the end of
    each direction.
    """

    worker_id: WorkerId
    role: Role
    kv_layout: str
    joined_seconds: float
    factor: float = 1.0
    left_seconds: float | None = None
    is_leaving: bool = False
    free_at_seconds: float = 0.0
    last_arrival: float = 0.0
    last_answer: float = 0.0
    busy_seconds: float = 0.0
    alignment_seconds: float = 0.0


class Wire:
    """Draws delays of one direction."""

    def __init__(self, costs: WireCosts, random: Random) -> None:
        self._costs = costs
        self._random = random

    def delay(self) -> float:
        """Seconds that the next message takes."""
        if not self._costs.jitter_seconds:
            return self._costs.seconds
        return self._costs.seconds + self._costs.jitter_seconds * self._random.random()


class Fleet:
    """Owns the workers, those that left included."""

    def __init__(self, costs: Costs, kv_layout: str, seed: int) -> None:
        self._costs = costs
        self._kv_layout = kv_layout
        self._wire = Wire(costs.wire, Random(f"{seed}/wire"))
        self._members: dict[WorkerId, ModelledWorker] = {}
        self._left: list[ModelledWorker] = []

    def join(self, worker_id: WorkerId, role: Role, now: float) -> None:
        """A worker is there, idle."""
        worker = ModelledWorker(worker_id, role, self._kv_layout, joined_seconds=now)
        self._members[worker_id] = worker

    def remove(self, worker_id: WorkerId, now: float) -> None:
        """A worker is gone; what it would still have done does not count as work."""
        worker = self._members.pop(worker_id)
        worker.left_seconds = now
        worker.busy_seconds -= max(0.0, worker.free_at_seconds - now)
        self._left.append(worker)

    def set_leaving(self, worker_id: WorkerId) -> None:
        """It goes when its last row is gone."""
        self._members[worker_id].is_leaving = True

    def set_factor(self, worker_id: WorkerId, factor: float) -> None:
        """Batches that are sent from now on take `factor` times as long."""
        self._members[worker_id].factor = factor

    def is_member(self, worker_id: WorkerId) -> bool:
        """Whether it is there."""
        return worker_id in self._members

    def leaving(self) -> tuple[WorkerId, ...]:
        """Members that go when their last row is gone."""
        return tuple(one.worker_id for one in self._members.values() if one.is_leaving)

    def all_workers(self) -> tuple[ModelledWorker, ...]:
        """Members, and those that left."""
        return (*self._members.values(), *self._left)

    def send(self, command: Draft | Verify, now: float) -> Answer:
        """Queue a batch at its worker; says when its answer will be there."""
        worker = self._members[command.worker_id]
        aligning = worker.factor * self._alignment_seconds(worker, command)
        busy = aligning + worker.factor * self._pass_seconds(command)
        arrival = max(worker.last_arrival, now + self._wire.delay())
        start = max(arrival, worker.free_at_seconds)
        answer = max(worker.last_answer, start + busy + self._wire.delay())
        worker.last_arrival = arrival
        worker.free_at_seconds = start + busy
        worker.last_answer = answer
        worker.busy_seconds += busy
        worker.alignment_seconds += aligning
        return Answer(answer, PassCost(busy, answer - now, start - arrival))

    def _pass_seconds(self, command: Draft | Verify) -> float:
        if isinstance(command, Draft):
            return draft_seconds(self._costs.draft, command)
        return verify_seconds(self._costs.verify, command)

    def _alignment_seconds(self, worker: ModelledWorker, command: Draft | Verify) -> float:
        if isinstance(command, Draft) or worker.kv_layout != "padded":
            return 0.0
        return alignment_seconds(self._costs.alignment, command.alignment)
