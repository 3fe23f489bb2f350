"""What the scheduler is told. Frozen values; no behaviour.

The driver guarantees: an event about a batch is sent only while that batch is in flight (a reply
that comes after `WorkerLost`, or after the driver gave the batch up, is dropped before it gets
here); tokens are committed to the ledger before `VerifyCompleted` is sent. Times are measured
outside and come in as numbers; a worker serves what it is sent in the order it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.rounds import EntryStatus


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a batch took, in seconds.

    `busy_seconds` is the worker's own measure of its work, `elapsed_seconds` runs from sending the
    batch to its reply, `queued_seconds` is what of it the batch spent waiting at the worker.
    """

    busy_seconds: float
    elapsed_seconds: float
    queued_seconds: float = 0.0

    @property
    def wire_seconds(self) -> float:
        """What neither work nor waiting explains."""
        return max(0.0, self.elapsed_seconds - self.busy_seconds - self.queued_seconds)


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is connected, warm and empty. It can hold `num_slots` sequences of `max_length`.

    `kv_layout` "padded": rows of a batch must end in one column, others are realigned first.
    """

    worker_id: WorkerId
    role: Role
    num_slots: int
    max_length: int
    kv_layout: str = "slots"


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """A worker takes no new rows; its rows move as soon as their batch in flight is done."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, its KV with it; its batches in flight will not be answered."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class RefusalExpired:
    """A target that refused rows for lack of room, while it held none of ours, may be asked again.

    Nothing else would ever show that it has room; when that is, is the driver's business.
    """

    worker_id: WorkerId


@dataclass(frozen=True, slots=True)
class SequenceArrived:
    """A sequence wants to grow from `length` committed tokens to at most `max_length`.

    `max_draft_tokens` is the request's own number per round; None: the cluster's rule. Lower
    `priority` goes first; sequences of one `group` (a client's batch) share its turns in the queue.
    """

    sequence_id: SequenceId
    length: int
    max_length: int
    max_draft_tokens: int | None = None
    priority: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class SequenceCancelled:
    """A sequence ends now, whatever its phase. Unknown or finished ones are ignored."""

    sequence_id: SequenceId


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """One row of a draft reply. `num_drafted` tokens were staged for the next verify.

    `kv_length`: tokens of the committed log that the draft worker holds now. `num_looked_up` of
    the tokens took no pass of a model.
    """

    sequence_id: SequenceId
    status: EntryStatus
    num_drafted: int
    kv_length: int
    num_looked_up: int = 0

    @property
    def num_made(self) -> int | None:
        """Tokens that took a pass of a model; None: the row was refused or failed."""
        return self.num_drafted - self.num_looked_up if self.status is EntryStatus.OK else None


@dataclass(frozen=True, slots=True)
class DraftCompleted:
    """A draft worker answered."""

    worker_id: WorkerId
    batch_id: BatchId
    outcomes: tuple[DraftOutcome, ...]
    cost: PassCost | None = None


@dataclass(frozen=True, slots=True)
class DraftOverdue:
    """A draft batch was not answered within its patience: its rows go on with K = 0.

    The batch stays in flight; its late answer only says what the worker holds.
    """

    worker_id: WorkerId
    batch_id: BatchId


@dataclass(frozen=True, slots=True)
class DraftFailed:
    """A draft batch will not be answered. Its rows go on with K = 0; the worker stays a member."""

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
    cost: PassCost | None = None


@dataclass(frozen=True, slots=True)
class VerifyFailed:
    """A target worker answered with an error, or not in time; what it holds is unknown."""

    worker_id: WorkerId
    batch_id: BatchId


Event = (
    WorkerJoined
    | WorkerDraining
    | WorkerLost
    | RefusalExpired
    | SequenceArrived
    | SequenceCancelled
    | DraftCompleted
    | DraftOverdue
    | DraftFailed
    | VerifyCompleted
    | VerifyFailed
)
