"""Where rows live: choosing a target and a draft worker, leaving them, and who must be told.

Placement by load lives here. Rounds, outcomes and phases of batches do not: see `scheduler`.
"""

from __future__ import annotations

from coordinator.scheduler.commands import Release
from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import Policy
from coordinator.scheduler.rows import Phase, Row, Worker
from coordinator.scheduler.speculation import can_draft
from coordinator.scheduler.state import State
from exspec.core.ids import SequenceId, WorkerId

MUCH_SLOWER = 2.0
"""A draft worker that takes this many times as long as another is used when that one is full."""


class Homes:
    """Moves rows between workers; collects the releases that follow from it.

    A worker that was sent orders for a row gets exactly one `Release` when the row leaves it.
    """

    def __init__(self, state: State, policy: Policy, limits: SchedulerLimits, costs: Costs) -> None:
        self._state = state
        self._policy = policy
        self._limits = limits
        self._costs = costs
        self._released: dict[WorkerId, list[SequenceId]] = {}

    def take_releases(self) -> list[Release]:
        """What workers must be told to forget since the last call."""
        releases = [Release(worker_id, tuple(ids)) for worker_id, ids in self._released.items()]
        self._released = {}
        return releases

    # Targets

    def place_waiting(self) -> None:
        """Give waiting rows a target, first in the queue first.

        A row that fits no target with room is passed over: it cannot use that room, and it is
        first in line for the room it can use.
        """
        if not self._state.waiting or not self._targets_with_room():
            return
        for row in tuple(self._state.waiting):
            target = self._choose_target(row, avoided=None)
            if target is not None:
                self._state.settle(row, target)
                self._state.move(row, Phase.READY)
                if not self._targets_with_room():
                    return

    def rehome(self, row: Row, avoided: Worker | None = None) -> None:
        """Find another target for a row whose own one is of no use any more.

        None with room: back to the queue, at its old place. Its round is over; staged drafts are
        dropped.
        """
        self.leave_target(row)
        target = self._choose_target(row, avoided)
        if target is None:
            self.leave_draft(row)
            self._state.move(row, Phase.WAITING)
            return
        self._state.settle(row, target)
        if row.phase is not Phase.READY:
            self._state.move(row, Phase.READY)

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
            for worker in self._state.targets.values()
            if self._policy.has_room(worker, self._limits)
        ]

    def _choose_target(self, row: Row, avoided: Worker | None) -> Worker | None:
        fitting = (
            worker
            for worker in self._targets_with_room()
            if row.max_length <= worker.max_length and worker is not avoided
        )
        return min(fitting, key=self._target_load, default=None)

    def _target_load(self, target: Worker) -> tuple[float, int, int, int]:
        """The smallest share of its places taken; the most places free; the shortest context.

        A place is a slot of preallocated KV, as many as the window lets rows use. Long contexts are
        left to the rows that need them as long as nothing else tells targets apart.
        """
        num_places = min(target.num_slots, self._limits.window)
        num_rows = len(target.rows)
        share = num_rows / num_places
        return share, num_rows - num_places, target.max_length, target.join_index

    def _choose_draft(self, row: Row) -> Worker | None:
        """One that serves rows of the same target, as long as it has no more than its share.

        A draft batch has a fixed price, so the rows of a round should be drafted by few workers;
        and the round waits for the slowest, so slow ones come last.
        """
        fitting = [
            worker
            for worker in self._state.drafts.values()
            if worker.has_free_slot
            and worker.join_index not in row.refused_drafts
            and can_draft(worker, row)
        ]
        answering = [worker for worker in fitting if not worker.overdue]
        lasting = [worker for worker in answering if row.max_length <= worker.max_length]
        fitting = self._without_slow(lasting or answering or fitting)
        below = [worker for worker in fitting if len(worker.rows) < self._fair_share(worker)]
        if not below:
            return min(fitting, key=_draft_load, default=None)
        return min(below, key=lambda worker: (-_num_together(worker, row), _draft_load(worker)))

    def _without_slow(self, workers: list[Worker]) -> list[Worker]:
        """Those whose usual draft takes not much longer than that of the fastest among them."""
        times = {worker: self._costs.usual_draft_seconds(worker) for worker in workers}
        known = [seconds for seconds in times.values() if seconds]
        longest = MUCH_SLOWER * min(known, default=0.0)
        return [worker for worker in workers if times[worker] <= longest or not times[worker]]

    def _fair_share(self, draft: Worker) -> int:
        """Its rows when all targets are full: all of them, dealt out by draft workers' slots."""
        window = self._limits.window
        num_rows = sum(min(one.num_slots, window) for one in self._state.targets.values())
        num_slots = sum(one.num_slots for one in self._state.drafts.values())
        return -(-num_rows * draft.num_slots // num_slots)

    def _note_release(self, row: Row, worker: Worker) -> None:
        if self._state.is_member(worker) and row.sequence_id in worker.told:
            self._released.setdefault(worker.worker_id, []).append(row.sequence_id)


def _draft_load(worker: Worker) -> tuple[float, int]:
    return len(worker.rows) / worker.num_slots, worker.join_index


def _num_together(worker: Worker, row: Row) -> int:
    """Rows of the same target that this draft worker serves."""
    return sum(1 for other in worker.rows.values() if other.target is row.target)
