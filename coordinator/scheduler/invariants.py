"""What must hold between any two events, checked in full. For tests and debugging.

Nothing here changes the scheduler, and the scheduler does not need it: `check` is O(everything).
"""

from __future__ import annotations

from coordinator.scheduler.commands import VerifyOrder
from coordinator.scheduler.rows import AWAITED, Batch, Group, Phase, Row, Worker
from coordinator.scheduler.scheduler import Scheduler
from exspec.core.ids import Role, SequenceId


class InvariantError(AssertionError):
    """A bug of the scheduler, described."""


def check(scheduler: Scheduler) -> None:
    """Check everything that one moment shows.

    Raises:
        InvariantError: naming the row or worker and what is wrong with it.
    """
    for row in scheduler.state.rows.values():
        _check_row(row)
        _check_homes(scheduler, row)
    for worker in scheduler.state.workers.values():
        _check_worker(scheduler, worker)
        for batch in worker.batches.values():
            _check_batch(worker, batch)
        for group in worker.groups:
            _check_group(worker, group)
    _check_queue(scheduler)


class Progress:
    """Checks what only two moments show: epochs, rounds and lengths never fall."""

    def __init__(self) -> None:
        self._seen: dict[SequenceId, tuple[Row, tuple[int, ...]]] = {}

    def check(self, scheduler: Scheduler) -> None:
        """Compare with the last call.

        Raises:
            InvariantError: naming the row and both moments.
        """
        seen = self._seen
        self._seen = {}
        for row in scheduler.state.rows.values():
            marks = (row.target_epoch, row.draft_epoch, row.round_index, row.length)
            self._seen[row.sequence_id] = (row, marks)
            old_row, old_marks = seen.get(row.sequence_id, (row, marks))
            fell = any(new < old for new, old in zip(marks, old_marks, strict=True))
            _require(
                not (old_row is row and fell),
                f"{row.sequence_id}: (epochs, round, length) fell from {old_marks} to {marks}",
            )


_IN_GROUP = (Phase.WANTS_DRAFT, Phase.DRAFTING, Phase.WANTS_VERIFY)


def _require(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def _check_row(row: Row) -> None:
    name = row.sequence_id
    _require(1 <= row.length <= row.max_length, f"{name}: length {row.length}/{row.max_length}")
    _require(
        row.phase is Phase.FINISHED or row.length < row.max_length, f"{name}: full but not finished"
    )
    _require(
        row.phase is Phase.FINISHED or 0 <= row.target_kv_length <= row.length - 1,
        f"{name}: target holds {row.target_kv_length} of {row.length}; the last is always fed",
    )
    _require(
        0 <= row.draft_kv_length <= row.length,
        f"{name}: draft worker holds {row.draft_kv_length} of {row.length}",
    )
    _require(
        row.phase in (Phase.WANTS_VERIFY, Phase.VERIFYING, Phase.FINISHED) or not row.num_drafted,
        f"{name}: {row.num_drafted} drafts staged while {row.phase.value}",
    )
    _require(
        row.phase is Phase.FINISHED or (row.phase is Phase.VERIFYING) == (row.batch is not None),
        f"{name}: {row.phase.value}, but its verify is {row.batch}",
    )
    _require(
        row.phase is not Phase.DRAFTING or row.draft_batch is not None,
        f"{name}: drafting, but in no draft batch",
    )
    _require(
        (row.phase in _IN_GROUP) == (row.group is not None),
        f"{name}: {row.phase.value}, but its group is {row.group}",
    )
    _require(
        row.phase is not Phase.FINISHED or row.batch is not None,
        f"{name}: finished and idle, but not forgotten",
    )


def _check_homes(scheduler: Scheduler, row: Row) -> None:
    name = row.sequence_id
    for home, role in ((row.target, Role.TARGET), (row.draft, Role.DRAFT)):
        if home is None:
            continue
        _require(home.role is role, f"{name}: {home.worker_id} is no {role.value} worker")
        _require(scheduler.state.is_member(home), f"{name}: lives on {home.worker_id}, which left")
        _require(home.rows.get(name) is row, f"{name}: {home.worker_id} does not know of it")
    if row.phase is Phase.WAITING:
        _require(row.target is None and row.draft is None, f"{name}: waits, but owns a slot")
    if row.phase not in (Phase.WAITING, Phase.FINISHED):
        _require(row.target is not None, f"{name}: {row.phase.value} without a target")
    if row.phase in (Phase.WANTS_DRAFT, Phase.DRAFTING):
        _require(row.draft is not None, f"{name}: {row.phase.value} without a draft worker")
    _require(
        row.draft_batch is None or row.draft_batch.worker is row.draft,
        f"{name}: in a draft batch of a worker it does not live on",
    )
    _require(
        row.target is None or row.max_length <= row.target.max_length,
        f"{name}: may outgrow its target",
    )


def _check_worker(scheduler: Scheduler, worker: Worker) -> None:
    name = worker.worker_id
    _require(
        len(worker.rows) <= worker.num_slots, f"{name}: {len(worker.rows)}/{worker.num_slots} slots"
    )
    rows = worker.rows.values()
    _check_index(worker, "ready", worker.ready, Phase.READY, Role.TARGET)
    _check_index(worker, "wanting", worker.wanting, Phase.WANTS_DRAFT, Role.DRAFT)
    ended = sum(1 for row in rows if row.phase is Phase.FINISHED)
    _require(ended == worker.num_finished, f"{name}: {ended} ended, {worker.num_finished} counted")
    _require(worker.told <= worker.rows.keys(), f"{name}: told of rows that left: {worker.told}")
    for row in worker.rows.values():
        home = row.target if worker.role is Role.TARGET else row.draft
        _require(home is worker, f"{name}: {row.sequence_id} does not live here")
        _require(
            scheduler.state.rows.get(row.sequence_id) is row,
            f"{name}: {row.sequence_id} was forgotten but owns a slot",
        )
        busy_here = any(
            batch is not None and batch.worker is worker for batch in (row.batch, row.draft_batch)
        )
        _require(
            not worker.is_draining or busy_here or row.phase is Phase.FINISHED,
            f"{name}: drains, but {row.sequence_id} stays",
        )
    _require(
        not worker.is_full or worker.rows or worker.is_refusing,
        f"{name}: full, but holds no row of ours and refused none",
    )


def _check_index(
    worker: Worker, name: str, index: dict[SequenceId, Row], phase: Phase, role: Role
) -> None:
    expected = {i for i, row in worker.rows.items() if row.phase is phase and worker.role is role}
    _require(
        index.keys() == expected,
        f"{worker.worker_id}: {name} are {list(index)}, {phase.value} are {sorted(expected)}",
    )


def _check_group(worker: Worker, group: Group) -> None:
    where = f"a group at {worker.worker_id}"
    _require(group.rows, f"{where}: is empty")
    _require(group.target is worker, f"{where}: belongs to {group.target.worker_id}")
    for name, row in group.rows.items():
        _require(row.group is group and row.sequence_id == name, f"{where}: {name} is elsewhere")
        _require(row.target is worker, f"{where}: {name} lives elsewhere")
    awaited = sum(1 for row in group.rows.values() if row.phase in AWAITED)
    _require(
        awaited == group.num_awaited, f"{where}: {awaited} awaited, {group.num_awaited} counted"
    )


def _check_batch(worker: Worker, batch: Batch) -> None:
    where = f"batch {batch.batch_id} at {worker.worker_id}"
    _require(batch.worker is worker, f"{where}: belongs to {batch.worker.worker_id}")
    _require(batch.rows, f"{where}: is empty")
    names = [row.sequence_id for row in batch.rows]
    _require(len(set(names)) == len(names), f"{where}: holds a row twice: {names}")
    for row, order in zip(batch.rows, batch.orders, strict=True):
        name = row.sequence_id
        if not isinstance(order, VerifyOrder):
            continue  # a row may have left a draft worker since
        _require(row.batch is batch, f"{where}: {name} is in {row.batch}")
        _require(order.key.round_index <= row.round_index, f"{where}: {name}'s round is to come")
        _require(order.start < order.end <= row.length, f"{where}: {name} fed {order}")
        is_chunk = order.end < row.length
        _require(is_chunk == order.is_prefill, f"{where}: {name} is no prefill: {order}")
        room = row.max_length - order.end - 1
        _require(order.num_draft_tokens <= max(0, room), f"{where}: {name} drafts too far")


def _check_queue(scheduler: Scheduler) -> None:
    state = scheduler.state
    places = [row.place for row in state.waiting]
    _require(places == sorted(places), f"queue out of order: {places}")
    waiting = {name for name, row in state.rows.items() if row.phase is Phase.WAITING}
    queued = [row.sequence_id for row in state.waiting]
    _require(sorted(queued) == sorted(waiting), f"{queued} are queued, {sorted(waiting)} wait")
    ended = sum(1 for row in state.rows.values() if row.phase is Phase.FINISHED)
    _require(ended == state.num_finished, f"{ended} rows ended, {state.num_finished} counted")
