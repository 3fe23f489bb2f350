"""What the registry remembers of workers, present and gone, and of their models. Values."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from coordinator.links import WorkerLink
from coordinator.text import TextCodec
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.ids import WorkerId
from exspec.core.models import ModelFacts

if TYPE_CHECKING:
    from coordinator.pools import Pool

MAX_REMEMBERED = 64
"""Refused and lost workers that status still shows."""

MAX_INCARNATIONS = 4096
"""Names of workers, and processes that lost theirs, that are remembered."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Time bounds of the workers, in seconds."""

    lease_seconds: float
    draft_timeout_seconds: float
    target_timeout_seconds: float


class HeartbeatAnswer(Enum):
    """What a worker that gives a sign of life should do."""

    REGISTER = "register"
    """Its incarnation is not known."""
    GO_ON = "go_on"
    STOP = "stop"
    """An operator drained it, and it holds nothing any more."""


@dataclass(slots=True)
class Member:
    """A registered worker, changed by the registry only.

    `link_task` is None while a draft waits for a target to fit.
    """

    info: WorkerInfo
    last_heartbeat: float
    state: WorkerState = WorkerState.JOINING
    link: WorkerLink | None = None
    link_task: asyncio.Task[None] | None = None
    pool: Pool | None = None
    """The pool whose scheduler knows it; None while none does."""

    @property
    def num_sequences(self) -> int:
        """Sequences at home on it."""
        if self.pool is None:
            return 0
        return self.pool.driver.scheduler.rows_on(self.info.worker_id)

    @property
    def trouble(self) -> str:
        """Why it takes no rows, as far as is known."""
        if self.link is not None:
            return self.link.trouble
        wanted = self.info.draft_for
        return f"waits for a target of {wanted!r}" if wanted else "waits for a target"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served: that of the first target of its name, for the coordinator's life."""

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


@dataclass(slots=True)
class Incarnations:
    """Which processes were known by a worker id, so that one that was replaced stays so.

    Bounded: what was noted longest ago is forgotten first.
    """

    _newest: dict[WorkerId, str] = field(default_factory=dict[WorkerId, str])
    _replaced: dict[tuple[WorkerId, str], None] = field(
        default_factory=dict[tuple[WorkerId, str], None]
    )

    def note(self, worker_id: WorkerId, incarnation: str) -> None:
        """This process has the name now; whichever had it before has lost it."""
        before = self._newest.pop(worker_id, incarnation)
        self._newest[worker_id] = incarnation
        if before != incarnation:
            self._replaced[worker_id, before] = None
        for notes in (self._newest, self._replaced):
            while len(notes) > MAX_INCARNATIONS:
                del notes[next(iter(notes))]  # pyright: ignore[reportArgumentType]

    def is_replaced(self, worker_id: WorkerId, incarnation: str) -> bool:
        """Whether another process took this one's name over."""
        return (worker_id, incarnation) in self._replaced
