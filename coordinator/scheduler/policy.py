"""What a scheduling policy decides: who may join a target, and which rows begin a round together.

A policy reads rows and workers and changes nothing; it is asked after every event. How a row is
fed (chunks, draft counts, alignment) is not its business: see `orders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.rows import Row, Worker


class Policy(Protocol):
    """How rows of a target are put together. `policies` lists them."""

    @property
    def name(self) -> str:
        """Stands in the head of recorded traces."""
        ...

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Whether one more row may make this target its home."""
        ...

    def next_group(
        self, target: Worker, limits: SchedulerLimits, costs: Costs
    ) -> Sequence[Row] | None:
        """Rows (of `target.ready`) that begin a round together now; None: wait."""
        ...


def has_window_room(target: Worker, limits: SchedulerLimits) -> bool:
    """Up to W rows; a place is free as soon as its row has ended and its slot is too."""
    return target.has_free_slot and not target.is_full and target.num_live_rows < limits.window
