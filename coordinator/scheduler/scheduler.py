"""The event handlers: what each event does to rows.

Pure: events in, commands out; no clock, randomness, token ids or asyncio. Where rows live is
decided in `homes`, which of them go into a batch by the policy, how they are fed in `orders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from coordinator.scheduler import checks
from coordinator.scheduler.commands import Command
from coordinator.scheduler.dispatch import Dispatcher
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    Event,
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
from coordinator.scheduler.rows import Phase, Row, SchedulerError, Worker
from coordinator.scheduler.speculation import (
    FixedSpeculation,
    SpeculationRule,
    is_near,
    num_drafts_from,
    num_useful_drafts,
)
from coordinator.scheduler.state import State
from exspec.core.ids import Role, SequenceId, WorkerId
from exspec.core.rounds import EntryStatus

__all__ = ["Scheduler", "SchedulerError", "SchedulerLimits"]

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
        self.state = State()
        """For reading: policies, invariants, tests."""
        self._speculation = speculation or FixedSpeculation(limits.num_speculative_tokens)
        self._homes = Homes(self.state, policy, limits)
        self._dispatcher = Dispatcher(self.state, policy, limits, self._speculation, first_batch_id)

    @property
    def num_waiting(self) -> int:
        """Sequences without a target."""
        return self.state.num_rows_in[Phase.WAITING]

    @property
    def num_running(self) -> int:
        """Sequences that are neither waiting nor finished."""
        return len(self.state.rows) - self.num_waiting - self.state.num_rows_in[Phase.FINISHED]

    def rows_on(self, worker_id: WorkerId) -> int:
        """Slots in use on a worker; 0 for a stranger."""
        worker = self.state.workers.get(worker_id)
        return 0 if worker is None else len(worker.rows)

    def has_sequence(self, sequence_id: SequenceId) -> bool:
        """Whether a sequence is known and has not ended."""
        return self.phase_of(sequence_id) not in (None, Phase.FINISHED)

    def phase_of(self, sequence_id: SequenceId) -> Phase | None:
        """Its phase; None once it is forgotten (finished, and all its slots released)."""
        row = self.state.rows.get(sequence_id)
        return None if row is None else row.phase

    def num_failures(self, sequence_id: SequenceId) -> int:
        """Failed verifies since the sequence's last committed token; 0 for an unknown one."""
        row = self.state.rows.get(sequence_id)
        return 0 if row is None else row.num_failures

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
            case SequenceArrived():
                checks.check_arrival(self.state, event)
                self.state.arrive(event)
            case SequenceCancelled():
                self._cancel(self.state.rows.get(event.sequence_id))
            case DraftCompleted() | DraftFailed():
                self._end_draft(event)
            case VerifyCompleted() | VerifyFailed():
                self._end_verify(event)
            case _:
                assert_never(event)
        self._homes.place_waiting()
        return (*self._homes.take_releases(), *self._dispatcher.dispatch())

    # Members

    def _drain(self, worker: Worker) -> None:
        self.state.drain(worker)
        for row in tuple(worker.rows.values()):
            is_busy_here = row.batch is not None and row.batch.worker is worker
            if is_busy_here or row.phase is Phase.FINISHED:
                continue  # leaves when its batch is over
            self._evict(row, worker)

    def _lose(self, worker: Worker) -> None:
        self.state.remove_worker(worker)
        batch = worker.batch
        if batch is not None:
            self.state.end_batch(batch)
        for row in tuple(worker.rows.values()):
            if row.phase is Phase.VERIFYING and worker.role is Role.TARGET:
                self.state.fail(row)
            if row.phase is not Phase.FINISHED:
                self._evict(row, worker)
            elif row.batch is None:
                self._homes.retire(row)
            elif worker.role is Role.TARGET:
                self._homes.leave_target(row)
            else:
                self._homes.leave_draft(row)

    def _evict(self, row: Row, worker: Worker) -> None:
        """Take a live row away from a worker that may not keep it."""
        if worker.role is Role.TARGET:
            self._homes.rehome(row)
            return
        self._homes.leave_draft(row)
        if row.phase is Phase.WANTS_DRAFT:
            self.state.move(row, Phase.WANTS_VERIFY)
        elif row.phase is Phase.DRAFTING:
            self._after_draft(row)

    # Sequences

    def _cancel(self, row: Row | None) -> None:
        if row is not None and row.phase is not Phase.FINISHED:
            self._finish(row)

    def _finish(self, row: Row) -> None:
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
        self.state.end_batch(batch)
        for row, order, outcome in zip(batch.rows, batch.orders, outcomes, strict=True):
            if row.phase is Phase.FINISHED:
                self._homes.retire(row)
                continue
            if outcome is None:
                self._count_draft_failure(row)
            else:
                self._take_draft(row, order.num_draft_tokens, outcome)
            self._after_draft(row)

    def _take_draft(self, row: Row, num_ordered: int, outcome: DraftOutcome) -> None:
        match outcome.status:
            case EntryStatus.OK:
                # A target that was lost meanwhile left the row with a whole log to feed first.
                num_usable = outcome.num_drafted if is_near(row, num_ordered) else 0
                self.state.stage(row, num_usable, outcome.kv_length)
                self.state.draft_succeeded(row)
            case EntryStatus.LACKS_TOKENS:
                self.state.stage(row, 0, min(outcome.kv_length, row.length))
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

    def _after_draft(self, row: Row) -> None:
        """Go on to the verify, with or without drafts."""
        if row.draft is not None and row.draft.is_draining:
            self._homes.leave_draft(row)
        if row.target is None:
            self._homes.rehome(row)
        else:
            self.state.move(row, Phase.WANTS_VERIFY)

    # Verifies

    def _end_verify(self, event: VerifyCompleted | VerifyFailed) -> None:
        batch = checks.batch_in_flight(self.state, event.worker_id, Role.TARGET, event.batch_id)
        outcomes: Sequence[VerifyOutcome | None] = [None] * len(batch.rows)
        if isinstance(event, VerifyCompleted):
            checks.check_verify_outcomes(batch, event.outcomes)
            outcomes = event.outcomes
        self.state.end_batch(batch)
        for row, outcome in zip(batch.rows, outcomes, strict=True):
            if row.phase is Phase.FINISHED:
                self._homes.retire(row)
                continue
            self.state.unstage(row)
            if outcome is not None and outcome.status is EntryStatus.OK:
                self._commit(row, outcome)
            else:
                self._retry(row, batch.worker, outcome)

    def _commit(self, row: Row, outcome: VerifyOutcome) -> None:
        self.state.commit(row, outcome.num_committed)
        if outcome.is_finished:
            self._finish(row)
            return
        self.state.hold(row, outcome.kv_length)
        self._next_round(row, Phase.WANTS_DRAFT if self._may_draft(row) else Phase.WANTS_VERIFY)

    def _retry(self, row: Row, target: Worker, outcome: VerifyOutcome | None) -> None:
        self.state.fail(row)
        status = EntryStatus.FAILED if outcome is None else outcome.status
        if status is EntryStatus.NO_CAPACITY:
            self._homes.rehome(row, avoided=target)
            self.state.mark_full(target)
            return
        if outcome is not None and status is EntryStatus.LACKS_TOKENS:
            self.state.hold(row, outcome.kv_length)
        else:
            self.state.restart_target(row)
        self._next_round(row, Phase.WANTS_VERIFY)

    def _next_round(self, row: Row, phase: Phase) -> None:
        if row.target is None or row.target.is_draining:
            self._homes.rehome(row)
        else:
            self.state.move(row, phase)

    def _may_draft(self, row: Row) -> bool:
        """Whether the row drafts before its next verify; finds it a draft worker if so."""
        num_useful = num_useful_drafts(row, self._speculation)
        if num_useful == 0 or not is_near(row, num_useful):
            return False
        draft = self._homes.find_draft(row)
        return draft is not None and is_near(row, num_drafts_from(draft, row, num_useful))
