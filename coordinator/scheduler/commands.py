"""What the scheduler orders. Frozen values; no behaviour.

An order names log positions, never tokens: the driver fills in the tokens `log[start:end]` and,
for a verify, the draft tokens staged for the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from exspec.core.alignment import AlignmentPlan
from exspec.core.ids import BatchId, SequenceId, WorkerId
from exspec.core.rounds import EntryKey


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """Feed `log[start:end]`, propose up to `num_draft_tokens` (0: feed only)."""

    key: EntryKey
    start: int
    end: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Send a batch to a draft worker.

    After `patience_seconds` without an answer waiting costs more than going on without drafts: the
    driver then says `DraftOverdue`.
    """

    worker_id: WorkerId
    batch_id: BatchId
    orders: tuple[DraftOrder, ...]
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    """Feed `log[start:end]` and the `num_draft_tokens` staged tokens; choose K + 1 tokens.

    `is_prefill`: `end` is short of the committed length; feed only, choose nothing.
    """

    key: EntryKey
    start: int
    end: int
    num_draft_tokens: int = 0
    is_prefill: bool = False


@dataclass(frozen=True, slots=True)
class Verify:
    """Send a batch to a target worker.

    `alignment` is the realignment a rectangular layout needs before this batch can run (the
    bookkeeping of the padded layout; a slots worker does not need it).
    """

    worker_id: WorkerId
    batch_id: BatchId
    orders: tuple[VerifyOrder, ...]
    alignment: AlignmentPlan | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Let a worker forget sequences. Carries no reply that matters."""

    worker_id: WorkerId
    sequence_ids: tuple[SequenceId, ...]


Command = Draft | Verify | Release
