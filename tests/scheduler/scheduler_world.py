"""A driver, fake workers and a shadow ledger around one scheduler: the simulation's world.

A worker serves what it was sent in the order it was sent (batches and releases), several batches
may be in flight at it, and a batch may be overdue or given up and still be served. There is no
clock: the caller says who answers next. `settle` ends a run calmly and checks what must be true
then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_accounts import Account, Member, Wait, require
from scheduler_fakes import FakeWorker, commit_block, expected_log
from scheduler_plan import Flight, Generation, WorldPlan
from scheduler_shadow import Shadow
from scheduler_shadow_rounds import RoundRules, newcomers_of

from coordinator.scheduler import invariants
from coordinator.scheduler.commands import Draft, Release, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    DraftOverdue,
    RefusalExpired,
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
BEGINNINGS = (VerifyCompleted, VerifyFailed, SequenceArrived, WorkerJoined)
"""Events that begin rounds; others may only let one go on that began before."""


@dataclass
class World:
    """`scheduler` may be a `Scheduler` or a `Recorder` of one."""

    scheduler: object
    plan: WorldPlan
    shadow: Shadow = field(init=False)
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    inboxes: dict[str, list[Flight | Release]] = field(default_factory=dict)
    """By worker: what it was sent and has not read yet."""
    generations: dict[str, Generation] = field(default_factory=dict)
    num_steps: int = 0
    is_broken: bool = False
    """An event went wrong; nothing more can be said of this world."""

    def __post_init__(self) -> None:
        self.shadow = Shadow(self.plan.limits, *self.plan.bounds)
        self.rounds = RoundRules(self.plan.policy, self.shadow)
        self.progress = invariants.Progress()

    @property
    def core(self):
        """The scheduler itself."""
        return getattr(self.scheduler, "scheduler", self.scheduler)

    def flights_of(self, worker_id: str) -> list[Flight]:
        """Batches whose answer is still expected, oldest first."""
        return [
            item
            for item in self.inboxes[worker_id]
            if isinstance(item, Flight) and item.num_served is None
        ]

    @property
    def busy(self) -> list[str]:
        """Workers with an answer to give."""
        return sorted(worker_id for worker_id in self.workers if self.flights_of(worker_id))

    @property
    def busy_drafts(self) -> list[str]:
        return [name for name in self.busy if self.workers[name].role is Role.DRAFT]

    def act(self, event) -> None:
        """Tell the scheduler, check it, carry out its commands."""
        self.num_steps += 1
        self.is_broken = True
        self.rounds.may_begin = isinstance(event, BEGINNINGS)
        commands = self.scheduler.handle(event)
        invariants.check(self.core)
        self.progress.check(self.core)
        for command in commands:
            if isinstance(command, Release):
                self.shadow.release(command)
                self.inboxes[command.worker_id].append(command)
            else:
                self._send(command)
        for command in commands:
            if isinstance(command, Verify):
                self.rounds.check_refill(command)
        self.rounds.end_event()
        self.is_broken = False

    # What may happen

    def join(self, worker_id, role, num_slots: int, max_length: int, kv_layout="slots") -> None:
        self.workers[worker_id] = FakeWorker(worker_id, role, num_slots, max_length)
        self.inboxes[worker_id] = []
        self.rounds.forget(worker_id)
        self.shadow.members[worker_id] = Member(role, num_slots, max_length)
        self.act(WorkerJoined(worker_id, role, num_slots, max_length, kv_layout))

    def lose(self, worker_id: str) -> None:
        del self.workers[worker_id], self.inboxes[worker_id]
        self.shadow.lose(worker_id)
        self.act(WorkerLost(worker_id))

    def drain(self, worker_id: str) -> None:
        self.shadow.drain(worker_id)
        self.act(WorkerDraining(worker_id))

    @property
    def refusing(self) -> list[str]:
        """Targets that are left alone because they had no room while they held nothing."""
        targets = self.core.state.targets
        return sorted(i for i, one in targets.items() if one.is_full and not one.rows)

    def expire_refusal(self, worker_id: str) -> None:
        self.act(RefusalExpired(worker_id))

    def arrive(self, name, prompt, max_length, max_draft_tokens=None, priority=0, group="") -> None:
        self.generations[name] = Generation(tuple(prompt), list(prompt), max_length)
        account = Account(len(prompt), max_length, max_draft_tokens, touched=self.shadow.moment)
        self.shadow.rows[name] = account
        event = SequenceArrived(name, len(prompt), max_length, max_draft_tokens, priority, group)
        self.act(event)

    def cancel(self, name: str) -> None:
        generation = self.generations[name]
        if generation.is_live:
            generation.is_live = False
            generation.is_cancelled = True
            self.shadow.rows[name].is_live = False
        self.act(SequenceCancelled(name))

    def overdue(self, worker_id: str, index: int) -> None:
        """Nobody waits for that draft batch any longer; it will be answered all the same."""
        batch_id = self.flights_of(worker_id)[index].command.batch_id
        self.shadow.give_up(worker_id, batch_id)
        self.act(DraftOverdue(worker_id, batch_id))

    def deliver(self, worker_id: str, faults=None, cost=None) -> None:
        """Let a worker answer its oldest batch; `faults` maps entry indices to statuses."""
        flight = self._read_up_to_a_flight(worker_id)
        worker = self.workers[worker_id]
        faults = faults or {}
        outcomes = []
        for index, entry in enumerate(flight.entries):
            fault = faults.get(index)
            result = worker.serve(entry, fault)
            require(fault or result.status is OK, "refused-without-cause", entry, result)
            if isinstance(entry, VerifyEntry):
                outcomes.append(self._verified(worker_id, entry, result))
            else:
                outcomes.append(self._drafted(flight.command, entry, result))
        self.shadow.land(flight.command)
        kind = VerifyCompleted if isinstance(flight.command, Verify) else DraftCompleted
        self.act(kind(worker_id, flight.command.batch_id, tuple(outcomes), cost))

    def time_out(self, worker_id: str, index: int, num_served: int) -> None:
        """No answer comes, though the worker will serve the first entries."""
        flight = self.flights_of(worker_id)[index]
        flight.num_served = num_served
        self.shadow.land(flight.command)
        is_verify = isinstance(flight.command, Verify)
        if is_verify:
            for entry in flight.entries:
                self.shadow.reply(worker_id, entry.key.sequence_id, EntryStatus.FAILED, 0)
        kind = VerifyFailed if is_verify else DraftFailed
        self.act(kind(worker_id, flight.command.batch_id))

    def settle(self) -> None:
        """No more faults: everything must finish, equal the truth, and leave nothing behind."""
        for worker_id in self.refusing:
            self.expire_refusal(worker_id)
        need = max((g.max_length for g in self.generations.values()), default=1)
        if any(g.is_live for g in self.generations.values()):
            self.join("last-target", Role.TARGET, 4, need)
        steps = 0
        while self.busy:
            self.deliver(self.busy[steps % len(self.busy)])
            steps += 1
            require(steps < MAX_SETTLE_STEPS, "progress")
        for name, generation in self.generations.items():
            require(not generation.is_live, "everything-finishes", name, generation)
            if not generation.is_cancelled:
                truth = expected_log(generation.prompt, generation.max_length)
                require(generation.log == truth, "truth", name, generation.log, truth)
        require(not self.core.state.rows, "nothing-left", self.core.state.rows)
        for worker_id, worker in self.workers.items():
            self._read_all(worker_id)
            held = self.shadow.members[worker_id].holds
            require(len(worker.table) == 0 and not held, "all-released", worker_id, held)

    # Workers

    def _read_up_to_a_flight(self, worker_id: str) -> Flight:
        """The oldest batch that will be answered; what was sent before it is read first."""
        inbox = self.inboxes[worker_id]
        while True:
            item = inbox.pop(0)
            if isinstance(item, Flight) and item.num_served is None:
                return item
            self._read(worker_id, item)

    def _read_all(self, worker_id: str) -> None:
        while self.inboxes[worker_id]:
            self._read(worker_id, self.inboxes[worker_id].pop(0))

    def _read(self, worker_id: str, item: Flight | Release) -> None:
        worker = self.workers[worker_id]
        if isinstance(item, Release):
            for name in item.sequence_ids:
                worker.table.forget(name)
        else:
            for entry in item.entries[: item.num_served]:
                worker.serve(entry, None)

    # The driver

    def _send(self, command: Draft | Verify) -> None:
        newcomers = newcomers_of(self.shadow, command)
        self.shadow.order(command)
        if isinstance(command, Verify):
            self.rounds.check(command, newcomers)
        entries = [self._entry(command, order) for order in command.orders]
        self.inboxes[command.worker_id].append(Flight(command, entries))

    def _entry(self, command: Draft | Verify, order) -> VerifyEntry | DraftEntry:
        generation = self.generations[order.key.sequence_id]
        tokens = tuple(generation.log[order.start : order.end])
        if isinstance(command, Draft):
            return DraftEntry(order.key, order.start, tokens, order.num_draft_tokens)
        drafts = generation.staged[: order.num_draft_tokens]
        return VerifyEntry(order.key, order.start, tokens, drafts, order.is_prefill)

    def _drafted(self, command: Draft, entry: DraftEntry, result) -> DraftOutcome:
        """Stages what is waited for, as the driver does, and checks that it is asked rightly."""
        name = entry.key.sequence_id
        wait = self.shadow.waits_for(name, command.batch_id)
        is_awaited = self.core.awaits_draft(name, command.batch_id)
        require(wait is Wait.MAYBE or is_awaited == (wait is Wait.YES), "awaits-draft", name, wait)
        if is_awaited and result.status is OK:
            self.generations[name].staged = result.draft_tokens
            self.shadow.stage(name, len(result.draft_tokens))
        drafting = self.shadow.rows[name].drafting
        if drafting and drafting.batch_id == command.batch_id:  # else it left meanwhile
            self.shadow.reply(command.worker_id, name, result.status, result.kv_length)
        return DraftOutcome(name, result.status, len(result.draft_tokens), result.kv_length)

    def _verified(self, worker_id: str, entry: VerifyEntry, result) -> VerifyOutcome:
        name = entry.key.sequence_id
        generation, account = self.generations[name], self.shadow.rows[name]
        num_committed, is_finished = 0, False
        if generation.is_live and result.bonus_token is not None:
            num_committed, is_finished = commit_block(
                generation.log, entry.draft_tokens, result, generation.max_length
            )
            account.length += num_committed
        if is_finished:
            generation.is_live = account.is_live = False
        if result.status is EntryStatus.INVALID and generation.is_live and len(name) % 2:
            self.cancel(name)  # as the driver does for an INVALID entry, before the reply
        self.shadow.reply(worker_id, name, result.status, result.kv_length)
        return VerifyOutcome(name, result.status, num_committed, result.kv_length, is_finished)
