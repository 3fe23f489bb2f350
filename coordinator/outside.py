"""What a driver needs of the outside: workers to send to, and the time. Types only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.links import Batch
from exspec.core.ids import SequenceId, WorkerId
from exspec.runtime.clock import Clock


class Senders(Protocol):
    """Where batches go."""

    def send(self, worker_id: WorkerId, batch: Batch) -> None:
        """Queue a batch for a worker."""
        ...

    def release(self, worker_id: WorkerId, sequence_ids: Sequence[SequenceId]) -> None:
        """Let a worker forget sequences."""
        ...


CallLater = Callable[[float, Callable[[], None]], object]
"""Call a function after that many seconds, on the event loop."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the driver's time comes from."""

    clock: Clock
    call_later: CallLater
