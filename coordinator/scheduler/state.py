"""What the scheduler remembers, and the one class that changes it.

Everything that changes during scheduling is changed in this file, along the table in `rows`. What
should happen next is not decided here: `scheduler` handles events, a policy picks rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.scheduler.events import SequenceArrived, WorkerJoined
from coordinator.scheduler.queues import Queues
from coordinator.scheduler.rows import (
    AWAITED,
    MOVES,
    Batch,
    Group,
    Phase,
    Row,
    SchedulerError,
    Standing,
    Worker,
)
from exspec.core.ids import Role, SequenceId, WorkerId

PADDED = "padded"


class State:
    """Owns rows, workers and the waiting queue, and keeps their cross-references true."""

    def __init__(self) -> None:
        self.rows: dict[SequenceId, Row] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.targets: dict[WorkerId, Worker] = {}
        self.drafts: dict[WorkerId, Worker] = {}
        """The same workers by role."""
        self.num_finished = 0
        self._queues = Queues()
        self._num_joined = 0

    @property
    def waiting(self) -> list[Row]:
        """Rows without a home; sorted, so that one that comes back stands where it stood."""
        return self._queues.waiting

    # Members

    def join(self, event: WorkerJoined) -> None:
        """Add an empty worker."""
        worker = Worker(
            event.worker_id,
            event.role,
            event.num_slots,
            event.max_length,
            self._num_joined,
            event.kv_layout == PADDED,
        )
        self._num_joined += 1
        self.workers[event.worker_id] = worker
        self._of_role(worker)[event.worker_id] = worker

    def drain(self, worker: Worker) -> None:
        """Give a worker no new rows."""
        worker.standing = Standing.DRAINING

    def remove_worker(self, worker: Worker) -> None:
        """Make a worker a stranger; its rows still point at it until they leave it."""
        del self.workers[worker.worker_id]
        del self._of_role(worker)[worker.worker_id]

    def is_member(self, worker: Worker) -> bool:
        """Whether this very worker, not one that took its name later, is a member."""
        return self.workers.get(worker.worker_id) is worker

    # Rows

    def arrive(self, event: SequenceArrived) -> None:
        """Add a row to the queue."""
        row = Row(
            event.sequence_id,
            self._queues.turns.place(event.priority, event.group),
            event.group,
            event.length,
            event.max_length,
            event.max_draft_tokens,
        )
        self.rows[row.sequence_id] = row
        self._queues.put_in(row)

    def move(self, row: Row, phase: Phase) -> None:
        """Change a row's phase along the table; a row that enters or leaves a queue does so."""
        old = row.phase
        if phase not in MOVES[old]:
            raise SchedulerError(f"{row.sequence_id} cannot go from {old} to {phase}")
        self._queues.take_out(row)
        if old is Phase.WAITING and phase is Phase.READY:
            self._queues.turns.serve(row.place)
        row.phase = phase
        self._queues.put_in(row)
        if phase is Phase.FINISHED:
            self._count_finished(row)
        group = row.group
        if group is not None:
            group.num_awaited += (phase in AWAITED) - (old in AWAITED)

    def forget(self, row: Row) -> None:
        """Drop a finished row that has left its homes."""
        self.num_finished -= 1
        del self.rows[row.sequence_id]

    def commit(self, row: Row, num_tokens: int) -> None:
        """The log grew, or (0) a prefill chunk went in."""
        row.length += num_tokens
        if num_tokens:
            row.num_failures = 0

    def hold(self, row: Row, target_kv_length: int) -> None:
        """Believe what the target says it holds; the last token is always fed again."""
        row.target_kv_length = min(target_kv_length, row.length - 1)

    def fail(self, row: Row) -> None:
        """A verify of this row came to nothing."""
        row.num_failures += 1

    def judge(self, row: Row, num_agreed: float, num_judged: float) -> None:
        """What is remembered of how well its drafts did."""
        row.num_agreed = num_agreed
        row.num_judged = num_judged

    # Homes

    def settle(self, row: Row, worker: Worker) -> None:
        """Give a row a home, empty of it."""
        if worker.role is Role.TARGET:
            row.target = worker
            if row.phase is Phase.READY:
                worker.ready[row.sequence_id] = row
        else:
            row.draft = worker
            row.num_draft_failures = 0
        worker.rows[row.sequence_id] = row

    def leave_target(self, row: Row, worker: Worker) -> None:
        """Take a row from its target, and from the round it is in there."""
        self.leave_group(row)
        worker.ready.pop(row.sequence_id, None)
        self._leave(row, worker)
        row.target = None
        row.num_passed_over = 0
        self.restart_target(row)

    def leave_draft(self, row: Row, worker: Worker) -> None:
        """Take a row from its draft worker; a batch with it there is not its business any more."""
        worker.wanting.pop(row.sequence_id, None)
        worker.hungry.pop(row.sequence_id, None)
        self._leave(row, worker)
        row.draft = None
        row.draft_batch = None
        self.restart_draft(row)

    def restart_target(self, row: Row) -> None:
        """Take it that the target holds nothing: the whole log is sent under a new epoch."""
        row.target_epoch += 1
        row.target_kv_length = 0
        row.left_pad = 0
        row.num_drafted = 0

    def restart_draft(self, row: Row) -> None:
        """Take it that the draft worker holds nothing."""
        row.draft_epoch += 1
        row.draft_kv_length = 0

    def mark_full(self, worker: Worker) -> None:
        """It has no slot after all."""
        worker.is_full = True
        if not worker.rows:
            worker.is_refusing = True

    def forget_refusal(self, worker: Worker) -> None:
        """It may have a slot now."""
        worker.is_full = False

    def note_served(self, worker: Worker) -> None:
        """It has a slot for what it serves."""
        worker.is_refusing = False

    # Rounds

    def begin_round(self, group: Group, num_drafts: Sequence[int]) -> None:
        """Rows of a target start a round together, with K each; the others see it go by."""
        target = group.target
        target.groups.append(group)
        for row, number in zip(group.rows.values(), num_drafts, strict=True):
            row.group = group
            row.num_planned = number
            row.num_passed_over = 0
            self.move(row, Phase.WANTS_DRAFT if number else Phase.WANTS_VERIFY)
        for row in target.ready.values():
            row.num_passed_over += 1

    def leave_group(self, row: Row) -> None:
        """Take a row from the round it is in, if that is not being verified yet."""
        group = row.group
        if group is not None:
            row.group = None
            del group.rows[row.sequence_id]
            group.num_awaited -= row.phase in AWAITED
            if not group.rows:
                group.target.groups.remove(group)

    def end_group(self, group: Group) -> None:
        """It goes into a batch, or back."""
        group.target.groups.remove(group)
        for row in group.rows.values():
            row.group = None

    def note_draft_time(self, group: Group, seconds: float) -> None:
        """A draft batch with rows of this group took that long."""
        group.draft_seconds = max(group.draft_seconds, seconds)

    # Drafts

    def want_feed(self, row: Row) -> None:
        """Its draft worker should be fed before it is asked for drafts."""
        if row.draft is not None:
            row.draft.hungry[row.sequence_id] = row

    def stage(self, row: Row, num_drafted: int) -> None:
        """Drafts for the next verify."""
        row.num_drafted = num_drafted

    def hold_draft(self, row: Row, kv_length: int) -> None:
        """Believe what the draft worker says it holds."""
        row.draft_kv_length = min(kv_length, row.length)

    def draft_failed(self, row: Row) -> None:
        """One more failure in a row."""
        row.num_draft_failures += 1

    def draft_succeeded(self, row: Row) -> None:
        """Failures are counted anew."""
        row.num_draft_failures = 0

    def refuse_draft(self, row: Row, worker: Worker) -> None:
        """Never ask this draft worker for this row again."""
        row.refused_drafts |= {worker.join_index}

    # Batches

    def begin_batch(self, batch: Batch) -> None:
        """A batch is sent."""
        worker = batch.worker
        worker.batches[batch.batch_id] = batch
        worker.told.update([row.sequence_id for row in batch.rows])
        is_verify = worker.role is Role.TARGET
        for row, order in zip(batch.rows, batch.orders, strict=True):
            if is_verify:
                row.batch = batch
            else:
                row.draft_batch = batch
                worker.hungry.pop(row.sequence_id, None)
            row.round_index = order.key.round_index

    def end_batch(self, batch: Batch) -> None:
        """A batch is over, whatever came of it."""
        del batch.worker.batches[batch.batch_id]
        batch.worker.overdue.discard(batch.batch_id)
        for row in batch.rows:
            if row.batch is batch:
                row.batch = None
            elif row.draft_batch is batch:
                row.draft_batch = None

    def give_up_waiting(self, batch: Batch) -> None:
        """It may be answered later or never."""
        batch.worker.overdue.add(batch.batch_id)

    def align(self, row: Row, left_pad: int) -> None:
        """Note where a row stands in its target's block."""
        row.left_pad = left_pad

    # Inside

    def _count_finished(self, row: Row) -> None:
        self.num_finished += 1
        if row.draft is not None:
            row.draft.hungry.pop(row.sequence_id, None)
        for home in (row.target, row.draft):
            if home is not None:
                home.num_finished += 1

    def _of_role(self, worker: Worker) -> dict[WorkerId, Worker]:
        return self.targets if worker.role is Role.TARGET else self.drafts

    def _leave(self, row: Row, worker: Worker) -> None:
        del worker.rows[row.sequence_id]
        worker.told.discard(row.sequence_id)
        worker.num_finished -= row.phase is Phase.FINISHED
        worker.is_full = False
