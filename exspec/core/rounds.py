"""The values a coordinator and its workers exchange in a round, free of any wire format.

Entries are idempotent: keyed (sequence, epoch, round) and stating the committed length to stand
at, `end`. `exspec.wire.convert` turns them into messages and back. No behaviour lives here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.ids import BatchId, SequenceId


class EntryStatus(Enum):
    """What became of one entry of a batch; the other entries are not affected by it."""

    OK = "ok"
    LACKS_TOKENS = "lacks_tokens"
    """The worker holds `kv_length` tokens only; send the log from there."""
    STALE = "stale"
    """The entry's epoch or round is older than one already served; nothing was done."""
    NO_CAPACITY = "no_capacity"
    """No free slot, or the sequence is too long for this worker."""
    INVALID = "invalid"
    """The entry cannot be served by this worker, ever; `detail` says why."""
    FAILED = "failed"
    """The pass failed; the worker forgot the sequence and may be sent its log again."""


@dataclass(frozen=True, slots=True)
class EntryKey:
    """What makes an entry idempotent. `epoch` rises when a sequence moves to another worker."""

    sequence_id: SequenceId
    epoch: int
    round_index: int


@dataclass(frozen=True, slots=True)
class VerifyEntry:
    """Feed `tokens` (the log from `start`), then `draft_tokens`; choose at the last K + 1 places.

    `is_prefill` marks a chunk of a longer log: it is fed, nothing is chosen and no draft follows.
    `rules` say how to choose; they come with an entry that starts at 0 and hold until the next such
    one (None there: the best logit wins). `next_token` is the log's token after `tokens`; it comes
    with a chunk of a prompt whose logprobs are wanted. The last `num_looked_up` of the draft tokens
    were looked up; that does not travel, the coordinator counts by it.
    """

    key: EntryKey
    start: int
    tokens: tuple[int, ...]
    draft_tokens: tuple[int, ...] = ()
    is_prefill: bool = False
    rules: ChoiceRules | None = None
    next_token: int | None = None
    num_looked_up: int = 0

    @property
    def end(self) -> int:
        """The log length this entry stands at."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """`bonus_token` is None for a prefill chunk and for every status but OK.

    `kv_length` is how many tokens of the log (accepted drafts included) the worker holds now.
    `logprobs` has one item per accepted draft and one for the bonus token, if the rules want any.
    `prompt_logprobs` are those of the prompt's tokens from position `prompt_start` on.
    """

    key: EntryKey
    status: EntryStatus
    kv_length: int
    num_accepted: int = 0
    bonus_token: int | None = None
    detail: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_start: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """Feed `tokens` (the log from `start`), then propose up to `num_draft_tokens`; 0: feed only.

    `rules` are those of the target (see `VerifyEntry`), so that drafts are what it would choose.
    """

    key: EntryKey
    start: int
    tokens: tuple[int, ...]
    num_draft_tokens: int
    rules: ChoiceRules | None = None

    @property
    def end(self) -> int:
        """The log length this entry stands at."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class DraftResult:
    """`kv_length` is how many tokens of the committed log the worker holds now.

    The last `num_looked_up` of the draft tokens were looked up in the log, those before them are a
    model's.
    """

    key: EntryKey
    status: EntryStatus
    kv_length: int
    draft_tokens: tuple[int, ...] = ()
    detail: str = ""
    num_looked_up: int = 0


@dataclass(frozen=True, slots=True)
class PassTimings:
    """Where a worker's time went for one batch, on the worker's own monotonic clock (seconds)."""

    queue_seconds: float = 0.0
    align_seconds: float = 0.0
    forward_seconds: float = 0.0
    total_seconds: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0
    num_moved_rows: int = 0


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """Work for a target worker; `released` sequences are forgotten first. Both may be empty."""

    batch_id: BatchId
    entries: tuple[VerifyEntry, ...]
    released: tuple[SequenceId, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """One result per entry, in the order of the entries."""

    batch_id: BatchId
    results: tuple[VerifyResult, ...]
    timings: PassTimings


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """Work for a draft worker; `released` sequences are forgotten first. Both may be empty."""

    batch_id: BatchId
    entries: tuple[DraftEntry, ...]
    released: tuple[SequenceId, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftReply:
    """One result per entry, in the order of the entries."""

    batch_id: BatchId
    results: tuple[DraftResult, ...]
    timings: PassTimings
