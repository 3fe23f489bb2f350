"""A driver, fake workers and a shadow ledger around one scheduler: the simulation's world.

Batches are answered in any order the caller likes; there is no clock. `settle` ends a run calmly
and checks what must be true then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_fakes import FakeWorker, commit_block, expected_log
from scheduler_shadow import Shadow, ViolationError, require

from coordinator.scheduler import invariants
from coordinator.scheduler.commands import Draft, Release, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    SequenceArrived,
    SequenceCancelled,
    VerifyCompleted,
    VerifyFailed,
    VerifyOutcome,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from exspec.core.ids import Role
from exspec.core.rounds import DraftEntry, EntryStatus, VerifyEntry

OK = EntryStatus.OK
MAX_SETTLE_STEPS = 5_000
RESTARTS = (EntryStatus.FAILED, EntryStatus.STALE, EntryStatus.INVALID)


@dataclass
class Generation:
    """One sequence as the driver's ledger has it."""

    prompt: tuple[int, ...]
    log: list[int]
    max_length: int
    is_live: bool = True
    is_cancelled: bool = False
    staged: tuple[int, ...] = ()


@dataclass
class Flight:
    """A batch in flight: the command and its entries."""

    command: Draft | Verify
    entries: list


@dataclass
class World:
    """`scheduler` may be a `Scheduler` or a `Recorder` of one."""

    scheduler: object
    limits: object
    shadow: Shadow = field(init=False)
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    generations: dict[str, Generation] = field(default_factory=dict)
    flights: dict[str, Flight] = field(default_factory=dict)
    """By worker."""
    num_steps: int = 0
    is_broken: bool = False
    """An event went wrong; nothing more can be said of this world."""

    def __post_init__(self) -> None:
        self.shadow = Shadow(self.limits.max_prefill_tokens, self.limits.batch_size)
        self.progress = invariants.Progress()

    @property
    def core(self):
        """The scheduler itself."""
        return getattr(self.scheduler, "scheduler", self.scheduler)

    def act(self, event) -> None:
        """Tell the scheduler, check it, carry out its commands."""
        self.num_steps += 1
        self.is_broken = True
        commands = self.scheduler.handle(event)
        invariants.check(self.core)
        self.progress.check(self.core)
        for command in commands:
            if isinstance(command, Release):
                self.shadow.release(command)
                for name in command.sequence_ids:
                    self.workers[command.worker_id].table.forget(name)
            else:
                self._send(command)
        for command in commands:
            if isinstance(command, Verify):
                self.shadow.check_refill(command)
        self.is_broken = False

    # What may happen

    def join(self, worker_id: str, role: Role, num_slots: int, max_length: int) -> None:
        self.workers[worker_id] = FakeWorker(worker_id, role, num_slots, max_length)
        self.shadow.join(worker_id, num_slots)
        if role is Role.TARGET:
            self.shadow.targets[worker_id] = max_length
        self.act(WorkerJoined(worker_id, role, num_slots, max_length))

    def lose(self, worker_id: str) -> None:
        del self.workers[worker_id]
        flight = self.flights.pop(worker_id, None)
        if flight is not None:
            self._land(flight)
        self.shadow.lose(worker_id)
        self.act(WorkerLost(worker_id))

    def drain(self, worker_id: str) -> None:
        self.shadow.close(worker_id)
        self.act(WorkerDraining(worker_id))

    def arrive(self, name: str, prompt, max_length: int, max_draft_tokens=None) -> None:
        self.generations[name] = Generation(tuple(prompt), list(prompt), max_length)
        self.shadow.lengths[name] = len(prompt)
        self.shadow.max_lengths[name] = max_length
        self.act(SequenceArrived(name, len(prompt), max_length, max_draft_tokens))

    def cancel(self, name: str) -> None:
        generation = self.generations[name]
        if generation.is_live:
            generation.is_live = False
            generation.is_cancelled = True
            del self.shadow.lengths[name]
        self.act(SequenceCancelled(name))

    def deliver(self, worker_id: str, faults=None) -> None:
        """Let a worker answer; `faults` maps entry indices to statuses."""
        flight = self.flights.pop(worker_id)
        worker = self.workers[worker_id]
        faults = faults or {}
        outcomes = []
        for index, entry in enumerate(flight.entries):
            fault = faults.get(index)
            result = worker.serve(entry, fault)
            if fault is None and result.status is not OK:
                raise ViolationError(f"{entry} was refused without cause: {result}")
            if isinstance(entry, VerifyEntry):
                outcomes.append(self._verified(worker_id, entry, result))
            else:
                outcomes.append(self._drafted(worker_id, entry, result))
        self._land(flight)
        kind = VerifyCompleted if isinstance(flight.command, Verify) else DraftCompleted
        self.act(kind(worker_id, flight.command.batch_id, tuple(outcomes)))

    def time_out(self, worker_id: str, num_served: int) -> None:
        """No answer comes, though the worker did serve the first entries."""
        flight = self.flights.pop(worker_id)
        for entry in flight.entries[:num_served]:
            self.workers[worker_id].serve(entry, None)
        self._land(flight)
        is_verify = isinstance(flight.command, Verify)
        if is_verify:
            for entry in flight.entries:
                self.shadow.reply(worker_id, entry.key.sequence_id, None)
        kind = VerifyFailed if is_verify else DraftFailed
        self.act(kind(worker_id, flight.command.batch_id))

    def settle(self) -> None:
        """No more faults: everything must finish, equal the truth, and leave nothing behind."""
        need = max((g.max_length for g in self.generations.values()), default=1)
        if any(g.is_live for g in self.generations.values()):
            self.join("last-target", Role.TARGET, 4, need)
        steps = 0
        while self.flights:
            self.deliver(min(self.flights))
            steps += 1
            require(steps < MAX_SETTLE_STEPS, "no progress")
        for name, generation in self.generations.items():
            require(not generation.is_live, f"{name} never finished: {generation}")
            if not generation.is_cancelled:
                truth = expected_log(generation.prompt, generation.max_length)
                require(generation.log == truth, f"{name}: {generation.log}, not {truth}")
        require(not self.core.state.rows, f"rows left: {self.core.state.rows}")
        for worker in self.workers.values():
            require(len(worker.table) == 0, f"KV left on {worker.worker_id}")

    # The driver

    def _send(self, command: Draft | Verify) -> None:
        require(command.worker_id in self.workers, f"{command} for a stranger")
        require(command.worker_id not in self.flights, f"{command.worker_id} is busy: {command}")
        self.shadow.order(command)
        entries = [self._entry(command, order) for order in command.orders]
        self.flights[command.worker_id] = Flight(command, entries)

    def _entry(self, command: Draft | Verify, order) -> VerifyEntry | DraftEntry:
        generation = self.generations[order.key.sequence_id]
        tokens = tuple(generation.log[order.start : order.end])
        if isinstance(command, Draft):
            return DraftEntry(order.key, order.start, tokens, order.num_draft_tokens)
        drafts = generation.staged[: order.num_draft_tokens]
        return VerifyEntry(order.key, order.start, tokens, drafts, order.is_prefill)

    def _land(self, flight: Flight) -> None:
        self.shadow.land(entry.key.sequence_id for entry in flight.entries)

    def _drafted(self, worker_id: str, entry: DraftEntry, result) -> DraftOutcome:
        name = entry.key.sequence_id
        generation = self.generations[name]
        generation.staged = result.draft_tokens
        self.shadow.staged[name] = (len(generation.log), len(result.draft_tokens))
        self._note(worker_id, name, result)
        return DraftOutcome(name, result.status, len(result.draft_tokens), result.kv_length)

    def _verified(self, worker_id: str, entry: VerifyEntry, result) -> VerifyOutcome:
        name = entry.key.sequence_id
        generation = self.generations[name]
        num_committed, is_finished = 0, False
        if generation.is_live and result.bonus_token is not None:
            num_committed, is_finished = commit_block(
                generation.log, entry.draft_tokens, result, generation.max_length
            )
            self.shadow.lengths[name] += num_committed
        if is_finished:
            generation.is_live = False
            del self.shadow.lengths[name]
        if result.status is EntryStatus.INVALID and generation.is_live and len(name) % 2:
            self.cancel_before_reply(name)
        self._note(worker_id, name, result)
        return VerifyOutcome(name, result.status, num_committed, result.kv_length, is_finished)

    def cancel_before_reply(self, name: str) -> None:
        """As the driver does for an INVALID entry."""
        self.cancel(name)

    def _note(self, worker_id: str, name: str, result) -> None:
        if result.status is EntryStatus.NO_CAPACITY:
            self.shadow.close(worker_id)  # is not filled before one of its rows leaves
        certain = result.status not in RESTARTS
        self.shadow.reply(worker_id, name, result.kv_length if certain else None)
