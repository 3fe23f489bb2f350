"""EQSPEC: per target a stable batch in lockstep, every row in every round (paper, section 3).

Only the choice of rows lives here.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import has_window_room
from coordinator.scheduler.rows import Row, Worker


class EqSpec:
    """All rows of a target begin each round together; finished ones are refilled before it."""

    name = "eqspec"

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Up to B rows: the batch is all that lives there."""
        return has_window_room(target, limits) and target.num_live_rows < limits.batch_size

    def next_group(
        self,
        target: Worker,
        limits: SchedulerLimits,  # noqa: ARG002
        costs: Costs,  # noqa: ARG002
    ) -> Sequence[Row] | None:
        """The whole batch, once no row of it is in a round."""
        if not target.ready or target.num_in_round:
            return None
        return tuple(target.ready.values())


class StaticEqSpec(EqSpec):
    """EQSPEC as in the paper's code: a batch is refilled only when all of it has ended.

    For study: its batches shrink as their rows end.
    """

    name = "eqspec-static"

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Only while no row of the batch has begun."""
        has_begun = bool(target.told or target.num_in_round)
        return not has_begun and super().has_room(target, limits)
