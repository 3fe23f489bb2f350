"""A scheduler on a bench: short words for events, and the batches in flight by worker."""

from __future__ import annotations

from collections import defaultdict

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
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.rows import Phase
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

OK = EntryStatus.OK


class Bench:
    """`targets` and `drafts` join first, with 8 slots (or W) of 1,000 tokens each.

    `rule` is the text of a speculation rule, or a rule.
    """

    def __init__(self, targets=("t",), drafts=("d",), policy="eqspec", rule="5", **limits) -> None:
        self.limits = SchedulerLimits(**limits)
        self.rule = speculation_rule(rule) if isinstance(rule, str) else rule
        self.scheduler = Scheduler(POLICIES[policy](), self.limits, speculation=self.rule)
        self.flights: dict[str, list[Draft | Verify]] = defaultdict(list)
        """By worker, oldest first."""
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
                self.flights[command.worker_id].append(command)
        return self.last

    def join(self, name, role, num_slots=None, max_length=1000, kv_layout="slots"):
        num_slots = num_slots or max(8, self.limits.window)
        return self.tell(WorkerJoined(name, role, num_slots, max_length, kv_layout))

    def lose(self, name):
        self.flights.pop(name, None)
        return self.tell(WorkerLost(name))

    def drain(self, name):
        return self.tell(WorkerDraining(name))

    def expire_refusal(self, name="t"):
        return self.tell(RefusalExpired(name))

    def arrive(self, name, length=10, max_length=100, max_draft_tokens=None, priority=0, group=""):
        return self.tell(
            SequenceArrived(name, length, max_length, max_draft_tokens, priority, group)
        )

    def cancel(self, name):
        return self.tell(SequenceCancelled(name))

    def drafted(self, worker="d", num=None, cost=None, **odd):
        """All rows OK with all (or `num`) drafts; `odd[name]` = (status, kv_length)."""
        command = self.flights[worker].pop(0)
        outcomes = []
        for order in command.orders:
            name = order.key.sequence_id
            if name in odd:
                status, kv_length = odd[name]
                outcomes.append(DraftOutcome(name, status, 0, kv_length))
            else:
                drafted = order.num_draft_tokens if num is None else num
                outcomes.append(DraftOutcome(name, OK, drafted, order.end))
        return self.tell(DraftCompleted(worker, command.batch_id, tuple(outcomes), cost))

    def verified(self, worker="t", accepted=None, finished=(), cost=None, **odd):
        """All rows OK with all (or `accepted[name]`) drafts; `odd[name]` = (status, kv_length)."""
        command = self.flights[worker].pop(0)
        outcomes = []
        for order in command.orders:
            name = order.key.sequence_id
            if name in odd:
                status, kv_length = odd[name]
                outcomes.append(VerifyOutcome(name, status, 0, kv_length))
            elif order.is_prefill:
                outcomes.append(VerifyOutcome(name, OK, 0, order.end))
            elif self.phase(name) in (None, Phase.FINISHED):
                outcomes.append(VerifyOutcome(name, OK, 0, order.end))  # it was cancelled
            else:
                num = (accepted or {}).get(name, order.num_draft_tokens)
                done = name in finished
                outcomes.append(VerifyOutcome(name, OK, num + 1, order.end + num, done))
        return self.tell(VerifyCompleted(worker, command.batch_id, tuple(outcomes), cost))

    def overdue(self, worker="d", index=0):
        return self.tell(DraftOverdue(worker, self.flights[worker][index].batch_id))

    def draft_failed(self, worker="d"):
        return self.tell(DraftFailed(worker, self.flights[worker].pop(0).batch_id))

    def verify_failed(self, worker="t"):
        return self.tell(VerifyFailed(worker, self.flights[worker].pop(0).batch_id))

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

    def batches(self, kind=Verify):
        """The names in every batch of that kind in the last commands."""
        return [
            [order.key.sequence_id for order in command.orders]
            for command in self.last
            if isinstance(command, kind)
        ]

    def row(self, name):
        return self.scheduler.state.rows[name]

    def phase(self, name):
        return self.scheduler.phase_of(name)


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
