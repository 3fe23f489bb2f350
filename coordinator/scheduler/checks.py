"""Whether an event can happen now. Whole events are checked before anything is changed.

Every function here reads and raises `SchedulerError`; none changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.scheduler.commands import VerifyOrder
from coordinator.scheduler.events import (
    DraftOutcome,
    SequenceArrived,
    VerifyOutcome,
    WorkerJoined,
)
from coordinator.scheduler.rows import Batch, Phase, Row, SchedulerError, Worker
from coordinator.scheduler.state import State
from exspec.core.ids import BatchId, Role, WorkerId
from exspec.core.rounds import EntryStatus


def check_join(state: State, event: WorkerJoined) -> None:
    """A new name, and room for something."""
    if event.worker_id in state.workers:
        raise SchedulerError(f"worker {event.worker_id} has joined already")
    if event.num_slots < 1 or event.max_length < 1:
        raise SchedulerError(f"worker {event.worker_id} can hold nothing: {event}")


def check_arrival(state: State, event: SequenceArrived) -> None:
    """A new name, something to stand on and something to generate."""
    if event.sequence_id in state.rows:
        raise SchedulerError(f"sequence {event.sequence_id} has arrived already")
    if not 1 <= event.length < event.max_length:
        raise SchedulerError(f"sequence {event.sequence_id} has no room to grow: {event}")
    if event.max_draft_tokens is not None and event.max_draft_tokens < 0:
        raise SchedulerError(f"sequence {event.sequence_id} wants a negative draft: {event}")


def member(state: State, worker_id: WorkerId) -> Worker:
    """The worker of that name."""
    worker = state.workers.get(worker_id)
    if worker is None:
        raise SchedulerError(f"worker {worker_id} is not a member")
    return worker


def batch_in_flight(state: State, worker_id: WorkerId, role: Role, batch_id: BatchId) -> Batch:
    """The batch that a worker of that role has in flight."""
    worker = member(state, worker_id)
    if worker.role is not role:
        raise SchedulerError(f"worker {worker_id} is no {role.value} worker")
    batch = worker.batches.get(batch_id)
    if batch is None:
        raise SchedulerError(f"batch {batch_id} is not in flight at worker {worker_id}")
    return batch


def check_draft_outcomes(batch: Batch, outcomes: Sequence[DraftOutcome]) -> None:
    """One possible outcome per order, in the order of the orders."""
    _check_rows(batch, outcomes)
    for row, order, outcome in zip(batch.rows, batch.orders, outcomes, strict=True):
        if row.draft_batch is not batch:
            continue  # it left this worker meanwhile
        _require(0 <= outcome.num_drafted <= order.num_draft_tokens, outcome)
        _require(outcome.status is EntryStatus.OK or outcome.num_drafted == 0, outcome)
        _require(0 <= outcome.num_looked_up <= outcome.num_drafted, outcome)
        _require(outcome.kv_length >= 0, outcome)
        if outcome.status is EntryStatus.OK:
            _require(outcome.kv_length <= row.length, outcome)


def check_verify_outcomes(batch: Batch, outcomes: Sequence[VerifyOutcome]) -> None:
    """One possible outcome per order, in the order of the orders."""
    _check_rows(batch, outcomes)
    for row, order, outcome in zip(batch.rows, batch.orders, outcomes, strict=True):
        if row.phase is Phase.FINISHED:
            continue
        _require(outcome.kv_length >= 0, outcome)
        if outcome.status is not EntryStatus.OK or _is_prefill(order):
            # A refusal may report more than the log: accepted drafts of a reply that was lost.
            _require(outcome.num_committed == 0 and not outcome.is_finished, outcome)
        else:
            _check_commit(row, order.num_draft_tokens, outcome)


def _check_commit(row: Row, num_drafts: int, outcome: VerifyOutcome) -> None:
    new_length = row.length + outcome.num_committed
    _require(0 <= outcome.num_committed <= num_drafts + 1, outcome)
    _require(new_length <= row.max_length, outcome)
    if outcome.is_finished:
        return  # a cut block may leave more with the worker than was committed
    _require(outcome.num_committed >= 1, outcome)
    _require(new_length < row.max_length, outcome)
    _require(outcome.kv_length <= new_length, outcome)


def _check_rows(batch: Batch, outcomes: Sequence[DraftOutcome] | Sequence[VerifyOutcome]) -> None:
    expected = [row.sequence_id for row in batch.rows]
    got = [outcome.sequence_id for outcome in outcomes]
    if expected != got:
        raise SchedulerError(f"batch {batch.batch_id} holds {expected}, its outcomes {got}")


def _is_prefill(order: object) -> bool:
    return isinstance(order, VerifyOrder) and order.is_prefill


def _require(possible: object, outcome: DraftOutcome | VerifyOutcome) -> None:
    if not possible:
        raise SchedulerError(f"impossible outcome: {outcome}")
