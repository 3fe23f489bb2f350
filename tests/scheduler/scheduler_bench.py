"""A scheduler on a bench: short words for events, and the batches in flight by worker."""

from __future__ import annotations

from coordinator.scheduler import invariants
from coordinator.scheduler.commands import Draft, Release, Verify
from coordinator.scheduler.eqspec import EqSpec
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
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

OK = EntryStatus.OK


class Bench:
    """`targets` and `drafts` join first, with 8 slots of 1,000 tokens each."""

    def __init__(self, targets=("t",), drafts=("d",), speculation=None, **limits) -> None:
        self.scheduler = Scheduler(EqSpec(), SchedulerLimits(**limits), speculation=speculation)
        self.flights: dict[str, Draft | Verify] = {}
        self.last: tuple = ()
        for name in targets:
            self.join(name, Role.TARGET)
        for name in drafts:
            self.join(name, Role.DRAFT)

    def tell(self, event) -> tuple:
        self.last = self.scheduler.handle(event)
        invariants.check(self.scheduler)
        for command in self.last:
            if not isinstance(command, Release):
                self.flights[command.worker_id] = command
        return self.last

    def join(self, name, role, num_slots=8, max_length=1000):
        return self.tell(WorkerJoined(name, role, num_slots, max_length))

    def lose(self, name):
        self.flights.pop(name, None)
        return self.tell(WorkerLost(name))

    def drain(self, name):
        return self.tell(WorkerDraining(name))

    def arrive(self, name, length=10, max_length=100, max_draft_tokens=None):
        return self.tell(SequenceArrived(name, length, max_length, max_draft_tokens))

    def cancel(self, name):
        return self.tell(SequenceCancelled(name))

    def drafted(self, worker="d", num=None, **odd):
        """All rows OK with all (or `num`) drafts; `odd[name]` = (status, kv_length)."""
        command = self.flights.pop(worker)
        outcomes = []
        for order in command.orders:
            name = order.key.sequence_id
            if name in odd:
                status, kv_length = odd[name]
                outcomes.append(DraftOutcome(name, status, 0, kv_length))
            else:
                drafted = order.num_draft_tokens if num is None else num
                outcomes.append(DraftOutcome(name, OK, drafted, order.end))
        return self.tell(DraftCompleted(worker, command.batch_id, tuple(outcomes)))

    def verified(self, worker="t", accepted=None, finished=(), **odd):
        """All rows OK with all (or `accepted[name]`) drafts; `odd[name]` = (status, kv_length)."""
        command = self.flights.pop(worker)
        outcomes = []
        for order in command.orders:
            name = order.key.sequence_id
            if name in odd:
                status, kv_length = odd[name]
                outcomes.append(VerifyOutcome(name, status, 0, kv_length))
            elif order.is_prefill:
                outcomes.append(VerifyOutcome(name, OK, 0, order.end))
            else:
                num = (accepted or {}).get(name, order.num_draft_tokens)
                done = name in finished
                outcomes.append(VerifyOutcome(name, OK, num + 1, order.end + num, done))
        return self.tell(VerifyCompleted(worker, command.batch_id, tuple(outcomes)))

    def draft_failed(self, worker="d"):
        return self.tell(DraftFailed(worker, self.flights.pop(worker).batch_id))

    def verify_failed(self, worker="t"):
        return self.tell(VerifyFailed(worker, self.flights.pop(worker).batch_id))

    def order_of(self, name, kind=Verify):
        """The order for a row in the last commands, or None."""
        for command in self.last:
            if isinstance(command, kind):
                for order in command.orders:
                    if order.key.sequence_id == name:
                        return order
        return None

    def verify_of(self, name):
        return self.order_of(name, Verify)

    def draft_of(self, name):
        return self.order_of(name, Draft)

    def releases(self):
        """Pairs (worker, sequence) of the last commands."""
        return [
            (command.worker_id, name)
            for command in self.last
            if isinstance(command, Release)
            for name in command.sequence_ids
        ]

    def row(self, name):
        return self.scheduler.state.rows[name]


def spans(bench: Bench, kind=Verify):
    """(sequence, start, end) of every order of that kind in the last commands."""
    return [
        (order.key.sequence_id, order.start, order.end)
        for command in bench.last
        if isinstance(command, kind)
        for order in command.orders
    ]


def home_of(bench: Bench, name: str):
    """The name of the target a row lives on."""
    target = bench.row(name).target
    return target and target.worker_id


def snapshot(scheduler: Scheduler):
    """Everything a scheduler remembers, as comparable values."""

    def flat(value):
        if hasattr(value, "__slots__") and not isinstance(value, type):
            named = {}
            for slot in value.__slots__:
                item = getattr(value, slot)
                if slot in ("target", "draft", "worker"):
                    named[slot] = item and (item.worker_id, item.join_index)
                elif slot == "batch" or slot == "rows":
                    named[slot] = _names(item)
                else:
                    named[slot] = repr(item)
            return named
        return repr(value)

    state = scheduler.state
    return (
        {name: flat(row) for name, row in state.rows.items()},
        {name: (flat(worker), _batch(worker.batch)) for name, worker in state.workers.items()},
        [row.sequence_id for row in state.waiting],
        dict(state.num_rows_in),
        scheduler._dispatcher._next_batch_id,
        dict(scheduler._homes._released),
    )


def _names(item):
    if item is None:
        return None
    return list(item) if isinstance(item, dict) else item.batch_id


def _batch(batch):
    return batch and (batch.batch_id, [row.sequence_id for row in batch.rows], batch.orders)
