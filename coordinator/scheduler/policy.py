"""What a scheduling policy decides: who may join a target, and which rows go into a batch.

A policy reads rows and workers and changes nothing; it is asked whenever a worker is free. How a
row is fed (chunks, draft counts, alignment) is not its business: see `orders`.
"""

from __future__ import annotations

from typing import Protocol

from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.rows import Row, Worker


class Policy(Protocol):
    """EQSPEC is one (`eqspec`); EXSPEC will be another."""

    @property
    def name(self) -> str:
        """Stands in the head of recorded traces."""
        ...

    def has_room(self, target: Worker, limits: SchedulerLimits) -> bool:
        """Whether one more row may make this target its home."""
        ...

    def next_draft(self, worker: Worker, limits: SchedulerLimits) -> tuple[Row, ...] | None:
        """Rows (in WANTS_DRAFT, living there) for an idle draft worker; None: nothing now."""
        ...

    def next_verify(self, target: Worker, limits: SchedulerLimits) -> tuple[Row, ...] | None:
        """Rows (in WANTS_VERIFY, living there) for an idle target; None: nothing now."""
        ...
