"""EQSPEC: per target a stable batch in lockstep, every row in every round (paper, section 3).

Finished rows are refilled at the next round. Only the choice of rows lives here.
"""

from __future__ import annotations

from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.rows import Phase, Row, Worker


class EqSpec:
    """Verify once no row of the target is drafting or about to; then verify all of them."""

    name = "eqspec"

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Up to B rows; a place is free as soon as its row has ended and its slot is too."""
        return (
            target.has_free_slot and not target.is_full and target.num_live_rows < limits.batch_size
        )

    def next_draft(self, worker: Worker, limits: SchedulerLimits) -> tuple[Row, ...] | None:  # noqa: ARG002
        """All rows that want a draft from this worker, of whatever target."""
        if not worker.num_rows_in[Phase.WANTS_DRAFT]:
            return None
        return worker.rows_in(Phase.WANTS_DRAFT)

    def next_verify(self, target: Worker, limits: SchedulerLimits) -> tuple[Row, ...] | None:  # noqa: ARG002
        """The whole batch, or nothing while one of its rows is short of its draft."""
        counts = target.num_rows_in
        if counts[Phase.WANTS_DRAFT] or counts[Phase.DRAFTING] or not counts[Phase.WANTS_VERIFY]:
            return None
        return target.rows_in(Phase.WANTS_VERIFY)
