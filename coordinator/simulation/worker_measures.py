"""What modelled workers did, summed up. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.simulation.results import WorkerFigures
from coordinator.simulation.spreads import ratio
from coordinator.simulation.workers import ModelledWorker
from exspec.core.ids import Role


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of all workers of a role, up to the end of the run."""

    busy: float
    present: float


def worker_figures(workers: Sequence[ModelledWorker], end_seconds: float) -> WorkerFigures:
    """Figures of a run that ended at `end_seconds`."""
    targets = _work_of(workers, Role.TARGET, end_seconds)
    drafts = _work_of(workers, Role.DRAFT, end_seconds)
    return WorkerFigures(
        target_utilisation=ratio(targets.busy, targets.present),
        draft_utilisation=ratio(drafts.busy, drafts.present),
        target_seconds=targets.busy,
        draft_seconds=drafts.busy,
        alignment_seconds=sum(worker.alignment_seconds for worker in workers),
    )


def _work_of(workers: Sequence[ModelledWorker], role: Role, end_seconds: float) -> _Work:
    """A pass that goes on after the end counts until the end."""
    busy = present = 0.0
    for worker in workers:
        if worker.role is not role:
            continue
        busy += worker.busy_seconds
        if worker.left_seconds is None:
            busy -= max(0.0, worker.free_at_seconds - end_seconds)
            present += end_seconds - worker.joined_seconds
        else:
            present += worker.left_seconds - worker.joined_seconds
    return _Work(busy, present)
