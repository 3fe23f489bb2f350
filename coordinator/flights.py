"""Batches in flight: what was sent where and when, and how a failed entry is told. No decisions."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from coordinator.links import Batch
from exspec.core.ids import WorkerId
from exspec.core.rounds import DraftResult, VerifyResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch in flight."""

    worker_id: WorkerId
    batch: Batch
    sent: float
    is_grouped: bool = False
    """A verify before which no row has to move."""


def log_entry(kind: str, worker_id: WorkerId, result: DraftResult | VerifyResult) -> None:
    """A worker did not serve an entry."""
    logger.warning(
        "%s.entry worker=%s sequence=%s status=%s detail=%.200r",
        kind,
        worker_id,
        result.key.sequence_id,
        result.status.value,
        result.detail,
    )
