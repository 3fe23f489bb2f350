"""What the pool remembers of workers, present and gone, and of the model they serve. Values."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from coordinator.links import WorkerLink
from coordinator.text import TextCodec
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.ids import WorkerId
from exspec.core.models import ModelFacts

MAX_REMEMBERED = 64
"""Refused and lost workers that status still shows."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Time bounds of the workers, in seconds."""

    lease_seconds: float
    draft_timeout_seconds: float
    target_timeout_seconds: float


@dataclass(slots=True)
class Member:
    """A registered worker, changed by the pool only.

    `link_task` is None while a draft waits for a target to fit.
    """

    info: WorkerInfo
    last_heartbeat: float
    state: WorkerState = WorkerState.JOINING
    link: WorkerLink | None = None
    link_task: asyncio.Task[None] | None = None
    is_member: bool = False
    """Whether the scheduler knows it."""

    @property
    def trouble(self) -> str:
        """Why it takes no rows, as far as is known."""
        return "waits for a target" if self.link is None else self.link.trouble


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model of the cluster: that of its first target, for the coordinator's life."""

    facts: ModelFacts
    codec: TextCodec


@dataclass(slots=True)
class Memory:
    """Workers that are gone, newest last, at most one entry per name."""

    gone: dict[WorkerId, WorkerStatus] = field(default_factory=dict[WorkerId, WorkerStatus])

    def note(self, status: WorkerStatus) -> None:
        """A worker was refused or lost."""
        self.gone.pop(status.worker.worker_id, None)
        self.gone[status.worker.worker_id] = status
        while len(self.gone) > MAX_REMEMBERED:
            del self.gone[next(iter(self.gone))]
