"""Where rows live: choosing a target and a draft worker, leaving them, and who must be told.

Placement by load lives here. Rounds, outcomes and phases of batches do not: see `scheduler`.
"""

from __future__ import annotations

from coordinator.scheduler.commands import Release
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import Policy
from coordinator.scheduler.rows import Phase, Row, Worker
from coordinator.scheduler.speculation import can_draft
from coordinator.scheduler.state import State
from exspec.core.ids import Role, SequenceId, WorkerId


class Homes:
    """Moves rows between workers; collects the releases that follow from it.

    A worker that was sent orders for a row gets exactly one `Release` when the row leaves it.
    """

    def __init__(self, state: State, policy: Policy, limits: SchedulerLimits) -> None:
        self._state = state
        self._policy = policy
        self._limits = limits
        self._released: dict[WorkerId, list[SequenceId]] = {}

    def take_releases(self) -> list[Release]:
        """What workers must be told to forget since the last call."""
        releases = [Release(worker_id, tuple(ids)) for worker_id, ids in self._released.items()]
        self._released = {}
        return releases

    # Targets

    def place_waiting(self) -> None:
        """Give waiting rows a target, oldest first.

        A row that fits no target with room is passed over: it cannot use that room, and it is
        first in line for the room it can use.
        """
        if not self._state.waiting:
            return
        for row in tuple(self._state.waiting):
            if not self._targets_with_room():
                return
            target = self._choose_target(row, avoided=None)
            if target is not None:
                self._state.settle(row, target)
                self._state.move(row, Phase.WANTS_VERIFY)

    def rehome(self, row: Row, avoided: Worker | None = None) -> None:
        """Find another target for a row whose own one is of no use any more.

        None with room: back to the queue, at its old place. A row that is still being drafted
        keeps its phase; it is looked at again when the draft comes. Staged drafts are dropped.
        """
        self.leave_target(row)
        self._state.unstage(row)
        target = self._choose_target(row, avoided)
        if target is not None:
            self._state.settle(row, target)
        if row.batch is not None:
            return
        if target is None:
            self.leave_draft(row)
            self._state.move(row, Phase.WAITING)
        elif row.phase is not Phase.WANTS_VERIFY:
            self._state.move(row, Phase.WANTS_VERIFY)

    def leave_target(self, row: Row) -> None:
        """Take a row from its target, if it has one, and let the target know."""
        if row.target is not None:
            self._note_release(row, row.target)
            self._state.leave_target(row, row.target)

    # Draft workers

    def find_draft(self, row: Row) -> Worker | None:
        """The row's draft worker, chosen now if it has none that can still serve it."""
        if row.draft is not None and not can_draft(row.draft, row):
            self.leave_draft(row)
        if row.draft is None:
            choice = self._choose_draft(row)
            if choice is not None:
                self._state.settle(row, choice)
        return row.draft

    def leave_draft(self, row: Row) -> None:
        """Take a row from its draft worker, if it has one, and let the worker know."""
        if row.draft is not None:
            self._note_release(row, row.draft)
            self._state.leave_draft(row, row.draft)

    def refuse_draft(self, row: Row) -> None:
        """Leave the draft worker for good."""
        if row.draft is not None:
            self._state.refuse_draft(row, row.draft)
            self.leave_draft(row)

    def retire(self, row: Row) -> None:
        """Leave both homes of a finished row and forget it."""
        self.leave_target(row)
        self.leave_draft(row)
        self._state.forget(row)

    def _targets_with_room(self) -> list[Worker]:
        return [
            worker
            for worker in self._state.workers.values()
            if worker.role is Role.TARGET and self._policy.has_room(worker, self._limits)
        ]

    def _choose_target(self, row: Row, avoided: Worker | None) -> Worker | None:
        fitting = (
            worker
            for worker in self._targets_with_room()
            if row.max_length <= worker.max_length and worker is not avoided
        )
        return min(fitting, key=_load, default=None)

    def _choose_draft(self, row: Row) -> Worker | None:
        fitting = (
            worker
            for worker in self._state.workers.values()
            if worker.role is Role.DRAFT
            and worker.has_free_slot
            and worker.join_index not in row.refused_drafts
            and can_draft(worker, row)
        )
        return min(fitting, key=_load, default=None)

    def _note_release(self, row: Row, worker: Worker) -> None:
        if self._state.is_member(worker) and row.sequence_id in worker.told:
            self._released.setdefault(worker.worker_id, []).append(row.sequence_id)


def _load(worker: Worker) -> tuple[int, int]:
    return len(worker.rows), worker.join_index
