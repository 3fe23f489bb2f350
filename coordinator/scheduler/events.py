"""What the scheduler is told. Frozen values; no behaviour.

The driver guarantees: an event about a batch is sent only while that batch is in flight (a reply
that comes after `WorkerLost`, or after the driver gave the batch up, is dropped before it gets
here); tokens are committed to the ledger before `VerifyCompleted` is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.rounds import EntryStatus


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is connected, warm and empty. It can hold `num_slots` sequences of `max_length`."""

    worker_id: WorkerId
    role: Role
    num_slots: int
    max_length: int


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """A worker takes no new rows; its rows move as soon as their batch in flight is done."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, its KV with it; its batches in flight will not be answered."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class SequenceArrived:
    """A sequence wants to grow from `length` committed tokens to at most `max_length`.

    `max_draft_tokens` is the request's own bound per round; None: the policy's setting.
    """

    sequence_id: SequenceId
    length: int
    max_length: int
    max_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SequenceCancelled:
    """A sequence ends now, whatever its phase. Unknown or finished ones are ignored."""

    sequence_id: SequenceId


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """One row of a draft reply. `num_drafted` tokens were staged for the next verify.

    `kv_length`: tokens of the committed log that the draft worker holds now.
    """

    sequence_id: SequenceId
    status: EntryStatus
    num_drafted: int
    kv_length: int


@dataclass(frozen=True, slots=True)
class DraftCompleted:
    """A draft worker answered."""

    worker_id: WorkerId
    batch_id: BatchId
    outcomes: tuple[DraftOutcome, ...]


@dataclass(frozen=True, slots=True)
class DraftFailed:
    """A draft worker did not answer in time. Its rows go on with K = 0; it stays a member."""

    worker_id: WorkerId
    batch_id: BatchId


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """One row of a verify reply. `num_committed` tokens were appended to the log.

    For a prefill chunk it is 0. `is_finished`: the block ended the sequence. `kv_length`: tokens of
    the log (accepted drafts included) that the target holds now.
    """

    sequence_id: SequenceId
    status: EntryStatus
    num_committed: int
    kv_length: int
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class VerifyCompleted:
    """A target worker answered."""

    worker_id: WorkerId
    batch_id: BatchId
    outcomes: tuple[VerifyOutcome, ...]


@dataclass(frozen=True, slots=True)
class VerifyFailed:
    """A target worker answered with an error, or not in time; what it holds is unknown."""

    worker_id: WorkerId
    batch_id: BatchId


Event = (
    WorkerJoined
    | WorkerDraining
    | WorkerLost
    | SequenceArrived
    | SequenceCancelled
    | DraftCompleted
    | DraftFailed
    | VerifyCompleted
    | VerifyFailed
)
