"""The event handlers: what each event does to rows.

Pure: events in, commands out; no clock, randomness, token ids or asyncio. Where rows live is
decided in `homes`, which of them begin a round by the policy (`rounds`), how many tokens they draft
by the rule (`speculation`), how they are fed in `orders`; `dispatch` sends what is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from coordinator.scheduler import acceptance, checks
from coordinator.scheduler.commands import Command
from coordinator.scheduler.costs import Costs
from coordinator.scheduler.dispatch import Dispatcher
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    DraftOverdue,
    Event,
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
from coordinator.scheduler.homes import Homes
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import Policy
from coordinator.scheduler.rounds import Rounds
from coordinator.scheduler.rows import AWAITED, Batch, Phase, Row, SchedulerError, Worker
from coordinator.scheduler.speculation import FixedSpeculation, SpeculationRule
from coordinator.scheduler.state import State
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.rounds import EntryStatus

__all__ = ["Scheduler", "SchedulerError", "SchedulerLimits"]

DEFAULT_DRAFT_TOKENS = 5
"""K where no rule is given."""
MAX_DRAFT_FAILURES = 3
"""Failures in a row after which a draft worker is not asked again for a sequence."""


class Scheduler:
    """Turns events into commands. An event that raises `SchedulerError` has changed nothing."""

    def __init__(
        self,
        policy: Policy,
        limits: SchedulerLimits,
        first_batch_id: int = 1,
        speculation: SpeculationRule | None = None,
    ) -> None:
        self.policy = policy
        self.limits = limits
        self.rule = speculation or FixedSpeculation(DEFAULT_DRAFT_TOKENS)
        self.state = State()
        """For reading: policies, invariants, tests."""
        self._costs = Costs(self.state)
        self._homes = Homes(self.state, policy, limits, self._costs)
        self._rounds = Rounds(self.state, self._homes, policy, self.rule, self._costs, limits)
        self._dispatcher = Dispatcher(self.state, self._costs, limits, first_batch_id)

    @property
    def num_waiting(self) -> int:
        """Sequences without a target."""
        return len(self.state.waiting)

    @property
    def num_running(self) -> int:
        """Sequences that are neither waiting nor finished."""
        return len(self.state.rows) - self.num_waiting - self.state.num_finished

    def rows_on(self, worker_id: WorkerId) -> int:
        """Slots in use on a worker; 0 for a stranger."""
        worker = self.state.workers.get(worker_id)
        return 0 if worker is None else len(worker.rows)

    def phase_of(self, sequence_id: SequenceId) -> Phase | None:
        """Its phase; None once it is forgotten (finished, and all its slots released)."""
        row = self.state.rows.get(sequence_id)
        return None if row is None else row.phase

    def num_failures(self, sequence_id: SequenceId) -> int:
        """Failed verifies since the sequence's last committed token; 0 for an unknown one."""
        row = self.state.rows.get(sequence_id)
        return 0 if row is None else row.num_failures

    def awaits_draft(self, sequence_id: SequenceId, batch_id: BatchId) -> bool:
        """Whether what a draft batch in flight brings for a sequence will be verified."""
        row = self.state.rows.get(sequence_id)
        if row is None or row.phase is not Phase.DRAFTING or row.draft_batch is None:
            return False
        return row.draft_batch.batch_id == batch_id

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Take an event in; returns releases first, then drafts, then verifies.

        Raises:
            SchedulerError: the event cannot happen now; nothing was changed.
        """
        match event:
            case WorkerJoined():
                checks.check_join(self.state, event)
                self.state.join(event)
            case WorkerDraining():
                self._drain(checks.member(self.state, event.worker_id))
            case WorkerLost():
                self._lose(checks.member(self.state, event.worker_id))
            case RefusalExpired():
                self.state.forget_refusal(checks.member(self.state, event.worker_id))
            case SequenceArrived():
                checks.check_arrival(self.state, event)
                self.state.arrive(event)
            case SequenceCancelled():
                self._cancel(self.state.rows.get(event.sequence_id))
            case DraftCompleted() | DraftFailed():
                self._end_draft(event)
            case DraftOverdue():
                self._go_on_without(event)
            case VerifyCompleted() | VerifyFailed():
                self._end_verify(event)
            case _:
                assert_never(event)
        self._homes.place_waiting()
        self._rounds.begin()
        return (*self._homes.take_releases(), *self._dispatcher.dispatch())

    # Members

    def _drain(self, worker: Worker) -> None:
        self.state.drain(worker)
        for row in tuple(worker.rows.values()):
            is_verifying = row.batch is not None and row.batch.worker is worker
            is_drafting = row.phase is Phase.DRAFTING and row.draft is worker
            if not is_verifying and not is_drafting and row.phase is not Phase.FINISHED:
                self._evict(row, worker)  # the others leave when their batch is over

    def _lose(self, worker: Worker) -> None:
        self.state.remove_worker(worker)
        for batch in tuple(worker.batches.values()):
            self.state.end_batch(batch)
        for row in tuple(worker.rows.values()):
            if row.phase is Phase.VERIFYING and worker.role is Role.TARGET:
                self.state.fail(row)
            if row.phase is not Phase.FINISHED:
                self._evict(row, worker)
            elif row.batch is None:
                self._homes.retire(row)
            else:
                self._homes.leave_draft(row)
        self._costs.forget(worker)
        self.rule.forget(worker)

    def _evict(self, row: Row, worker: Worker) -> None:
        """Take a live row away from a worker that may not keep it."""
        if worker.role is Role.TARGET:
            self._homes.rehome(row)
            return
        self._homes.leave_draft(row)
        if row.phase in AWAITED:
            self.state.move(row, Phase.WANTS_VERIFY)

    # Sequences

    def _cancel(self, row: Row | None) -> None:
        if row is not None and row.phase is not Phase.FINISHED:
            self._finish(row)

    def _finish(self, row: Row) -> None:
        self.state.leave_group(row)
        self.state.move(row, Phase.FINISHED)
        if row.batch is None:
            self._homes.retire(row)

    # Drafts

    def _end_draft(self, event: DraftCompleted | DraftFailed) -> None:
        batch = checks.batch_in_flight(self.state, event.worker_id, Role.DRAFT, event.batch_id)
        outcomes: Sequence[DraftOutcome | None] = [None] * len(batch.rows)
        if isinstance(event, DraftCompleted):
            checks.check_draft_outcomes(batch, event.outcomes)
            outcomes = event.outcomes
            self._note_draft_cost(batch, event)
        rows = [(row, row.awaits(batch), row.draft_batch is batch) for row in batch.rows]
        self.state.end_batch(batch)
        for (row, is_awaited, is_here), outcome in zip(rows, outcomes, strict=True):
            if not is_here:
                continue  # it left this worker meanwhile
            self._take_draft(row, outcome)
            if row.draft is not None and row.draft.is_draining:
                self._homes.leave_draft(row)
            if is_awaited:
                self.state.move(row, Phase.WANTS_VERIFY)

    def _go_on_without(self, event: DraftOverdue) -> None:
        """Neither its rows nor those in line behind it wait any longer."""
        batch = checks.batch_in_flight(self.state, event.worker_id, Role.DRAFT, event.batch_id)
        self.state.give_up_waiting(batch)
        awaited = [row for row in batch.rows if row.awaits(batch)]
        for row in (*awaited, *batch.worker.wanting.values()):
            if row.group is not None:
                self.state.note_draft_time(row.group, batch.patience_seconds)
            self.state.move(row, Phase.WANTS_VERIFY)
            if batch.worker.is_draining:
                self._homes.leave_draft(row)

    def _note_draft_cost(self, batch: Batch, event: DraftCompleted) -> None:
        if event.cost is None:
            return
        num_made = [outcome.num_made for outcome in event.outcomes]
        self._costs.note_draft(batch, num_made, event.cost)
        for row in batch.rows:
            if row.group is not None and row.awaits(batch):
                self.state.note_draft_time(row.group, event.cost.elapsed_seconds)

    def _take_draft(self, row: Row, outcome: DraftOutcome | None) -> None:
        if outcome is None:
            self._count_draft_failure(row)
            return
        match outcome.status:
            case EntryStatus.OK:
                self.state.hold_draft(row, outcome.kv_length)
                self.state.draft_succeeded(row)
                if row.phase is Phase.DRAFTING:
                    self.state.stage(row, outcome.num_drafted)
            case EntryStatus.LACKS_TOKENS:
                self.state.hold_draft(row, outcome.kv_length)
                self._count_draft_failure(row)
            case EntryStatus.NO_CAPACITY:
                self._homes.refuse_draft(row)
            case EntryStatus.STALE | EntryStatus.INVALID | EntryStatus.FAILED:
                self.state.restart_draft(row)
                self._count_draft_failure(row)

    def _count_draft_failure(self, row: Row) -> None:
        self.state.draft_failed(row)
        if row.num_draft_failures >= MAX_DRAFT_FAILURES:
            self._homes.refuse_draft(row)

    # Verifies

    def _end_verify(self, event: VerifyCompleted | VerifyFailed) -> None:
        batch = checks.batch_in_flight(self.state, event.worker_id, Role.TARGET, event.batch_id)
        outcomes: Sequence[VerifyOutcome | None] = [None] * len(batch.rows)
        if isinstance(event, VerifyCompleted):
            checks.check_verify_outcomes(batch, event.outcomes)
            outcomes = event.outcomes
            self.rule.learn(batch, event.outcomes, event.cost)
            if event.cost is not None:
                self._costs.note_verify(batch, event.cost)
        self.state.end_batch(batch)
        for row, order, outcome in zip(batch.rows, batch.orders, outcomes, strict=True):
            if row.phase is Phase.FINISHED:
                self._homes.retire(row)
                continue
            self.state.stage(row, 0)
            if outcome is not None and outcome.status is EntryStatus.OK:
                self.state.note_served(batch.worker)
                self._commit(row, order.num_draft_tokens, outcome)
            else:
                self._retry(row, batch.worker, outcome)

    def _commit(self, row: Row, num_drafts: int, outcome: VerifyOutcome) -> None:
        self.state.commit(row, outcome.num_committed)
        if outcome.is_finished:
            self._finish(row)
            return
        num_accepted = max(0, outcome.num_committed - 1)
        planned = acceptance.planned(row, num_drafts)
        self.state.judge(row, *acceptance.remembered(row, planned, num_accepted))
        self.state.hold(row, outcome.kv_length)
        self._end_round(row)

    def _retry(self, row: Row, target: Worker, outcome: VerifyOutcome | None) -> None:
        status = EntryStatus.FAILED if outcome is None else outcome.status
        if status is EntryStatus.NO_CAPACITY:  # which says nothing of the row
            self._homes.rehome(row, avoided=target)
            self.state.mark_full(target)
            return
        self.state.fail(row)
        if outcome is not None and status is EntryStatus.LACKS_TOKENS:
            self.state.hold(row, outcome.kv_length)
        else:
            self.state.restart_target(row)
        self._end_round(row)

    def _end_round(self, row: Row) -> None:
        if row.target is None or row.target.is_draining:
            self._homes.rehome(row)
        else:
            self.state.move(row, Phase.READY)
