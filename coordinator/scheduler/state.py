"""What the scheduler remembers, and the one class that changes it.

Everything that changes during scheduling is changed in this file, along the table in `rows`. What
should happen next is not decided here: `scheduler` handles events, a policy picks rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from coordinator.scheduler.events import SequenceArrived, WorkerJoined
from coordinator.scheduler.rows import (
    MOVES,
    Batch,
    Phase,
    Row,
    SchedulerError,
    Standing,
    Worker,
    no_rows,
)
from exspec.core.ids import Role, SequenceId, WorkerId


class State:
    """Owns rows, workers and the waiting queue, and keeps their cross-references true."""

    def __init__(self) -> None:
        self.rows: dict[SequenceId, Row] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.waiting: list[Row] = []
        """Sorted by arrival, so a row that comes back stands where it stood."""
        self.num_rows_in = no_rows()
        self._num_arrived = 0
        self._num_joined = 0

    # Members

    def join(self, event: WorkerJoined) -> None:
        """Add an empty worker."""
        self.workers[event.worker_id] = Worker(
            event.worker_id, event.role, event.num_slots, event.max_length, self._num_joined
        )
        self._num_joined += 1

    def drain(self, worker: Worker) -> None:
        """Give a worker no new rows."""
        worker.standing = Standing.DRAINING

    def remove_worker(self, worker: Worker) -> None:
        """Make a worker a stranger; its rows still point at it until they leave it."""
        del self.workers[worker.worker_id]

    def is_member(self, worker: Worker) -> bool:
        """Whether this very worker, not one that took its name later, is a member."""
        return self.workers.get(worker.worker_id) is worker

    # Rows

    def arrive(self, event: SequenceArrived) -> None:
        """Add a row at the end of the queue."""
        row = Row(
            event.sequence_id,
            self._num_arrived,
            event.length,
            event.max_length,
            event.max_draft_tokens,
        )
        self._num_arrived += 1
        self.rows[row.sequence_id] = row
        self.num_rows_in[Phase.WAITING] += 1
        self.waiting.append(row)

    def move(self, row: Row, phase: Phase) -> None:
        """Change a row's phase along the table."""
        old = row.phase
        if phase not in MOVES[old]:
            raise SchedulerError(f"{row.sequence_id} cannot go from {old} to {phase}")
        row.phase = phase
        self.num_rows_in[old] -= 1
        self.num_rows_in[phase] += 1
        for home in (row.target, row.draft):
            if home is not None:
                home.num_rows_in[old] -= 1
                home.num_rows_in[phase] += 1
        if old is Phase.WAITING:
            del self.waiting[bisect_left(self.waiting, row.arrival_index, key=_arrival)]
        elif phase is Phase.WAITING:
            insort(self.waiting, row, key=_arrival)

    def forget(self, row: Row) -> None:
        """Drop a finished row that has left its homes."""
        self.num_rows_in[row.phase] -= 1
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

    # Homes

    def settle(self, row: Row, worker: Worker) -> None:
        """Give a row a home, empty of it."""
        if worker.role is Role.TARGET:
            row.target = worker
        else:
            row.draft = worker
            row.num_draft_failures = 0
        worker.rows[row.sequence_id] = row
        worker.num_rows_in[row.phase] += 1

    def leave_target(self, row: Row, worker: Worker) -> None:
        """Take a row from its target."""
        self._leave(row, worker)
        row.target = None
        self.restart_target(row)

    def leave_draft(self, row: Row, worker: Worker) -> None:
        """Take a row from its draft worker."""
        self._leave(row, worker)
        row.draft = None
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
        """It has no slot after all; without rows of ours nothing would ever clear the mark."""
        worker.is_full = bool(worker.rows)

    # Drafts

    def stage(self, row: Row, num_drafted: int, draft_kv_length: int) -> None:
        """The draft worker answered."""
        row.num_drafted = num_drafted
        row.draft_kv_length = draft_kv_length

    def unstage(self, row: Row) -> None:
        """Drop what was drafted."""
        row.num_drafted = 0

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
        batch.worker.batch = batch
        for row, order in zip(batch.rows, batch.orders, strict=True):
            row.batch = batch
            batch.worker.told.add(row.sequence_id)
            row.round_index = order.key.round_index

    def end_batch(self, batch: Batch) -> None:
        """A batch is over, whatever came of it."""
        batch.worker.batch = None
        for row in batch.rows:
            row.batch = None

    def align(self, row: Row, left_pad: int) -> None:
        """Note where a row stands in its target's block."""
        row.left_pad = left_pad

    def _leave(self, row: Row, worker: Worker) -> None:
        del worker.rows[row.sequence_id]
        worker.told.discard(row.sequence_id)
        worker.num_rows_in[row.phase] -= 1
        worker.is_full = False


def _arrival(row: Row) -> int:
    return row.arrival_index
