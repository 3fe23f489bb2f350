"""The nouns of the scheduler: phases with their table of legal moves, rows, workers, batches.

Rows, workers and groups are read by everybody and changed by `state.State` alone. No decision
lives here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.queueing import Place
from exspec.core.errors import InternalError
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId


class SchedulerError(InternalError):
    """An event that cannot happen now. The state is as it was before."""


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    """Has no home; owns no slot anywhere."""
    READY = "ready"
    """Lives on a target, between two rounds."""
    WANTS_DRAFT = "wants_draft"
    DRAFTING = "drafting"
    """Waits for the draft batch it is in."""
    WANTS_VERIFY = "wants_verify"
    VERIFYING = "verifying"
    FINISHED = "finished"
    """Ended; still owns its slots while a verify with it is in flight, then it is forgotten."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is Python code


_ENDS = frozenset({Phase.READY, Phase.WAITING, Phase.FINISHED})
"""Whatever the phase: the target left, with or without another one, or the row ended."""

MOVES: dict[Phase, frozenset[Phase]] = {
    # a place at a target was found
    Phase.WAITING: frozenset({Phase.READY, Phase.FINISHED}),
    # a round began with it
    Phase.READY: frozenset({Phase.WANTS_DRAFT, Phase.WANTS_VERIFY, Phase.WAITING, Phase.FINISHED}),
    # ordered; or the draft worker left
    Phase.WANTS_DRAFT: _ENDS | {Phase.DRAFTING, Phase.WANTS_VERIFY},
    # answered, or not waited for any longer
    Phase.DRAFTING: _ENDS | {Phase.WANTS_VERIFY},
    # ordered; or no prefill budget was left for it
    Phase.WANTS_VERIFY: _ENDS | {Phase.VERIFYING},
    # the round ended
    Phase.VERIFYING: _ENDS,
    Phase.FINISHED: frozenset(),
}


class Standing(Enum):
    """Whether a worker may be given new rows. A worker that left is no member at all."""

    SERVING = "serving"
    DRAINING = "draining"


AWAITED = (Phase.WANTS_DRAFT, Phase.DRAFTING)
"""Where a row's group cannot be verified without it."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence. Read by everybody, changed by `State` only.

    Epochs rise whenever a home changes or restarts from nothing; `round_index` rises with every
    order. `kv_length`s are what a home is believed to hold of the log.
    """

    sequence_id: SequenceId
    place: Place
    """In the queue."""
    queue_group: str
    """Whose turns it takes there; empty: its own."""
    length: int
    max_length: int
    max_draft_tokens: int | None
    phase: Phase = Phase.WAITING
    group: Group | None = field(default=None, repr=False)
    """The rows it began its round with; from READY to the verify."""
    batch: Batch | None = field(default=None, repr=False)
    """The verify in flight."""
    round_index: int = 0
    num_passed_over: int = 0
    """Rounds its target began without it since it is READY."""
    num_failures: int = 0
    """Failed verifies since the last committed token."""

    target: Worker | None = field(default=None, repr=False)
    target_epoch: int = 0
    target_kv_length: int = 0
    left_pad: int = 0
    """Empty columns before it in the target's rectangular block (see `exspec.core.alignment`)."""

    draft: Worker | None = field(default=None, repr=False)
    draft_batch: Batch | None = field(default=None, repr=False)
    """The draft batch in flight with it, waited for or not."""
    draft_epoch: int = 0
    draft_kv_length: int = 0
    num_planned: int = 0
    """Draft tokens asked for in this round (K)."""
    num_drafted: int = 0
    """Draft tokens staged for the next verify."""
    num_draft_failures: int = 0
    """In a row, at the present draft worker."""
    refused_drafts: frozenset[int] = frozenset()
    """`join_index` of draft workers that shall not be asked again for this row."""

    num_agreed: float = 0.0
    """Draft tokens accepted lately (decayed count; see `acceptance`)."""
    num_judged: float = 0.0
    """Draft tokens the target judged lately: the accepted ones and the first wrong one."""

    @property
    def num_lacking(self) -> int:
        """Tokens of the log the target must be fed before it can choose; at least the last one."""
        return self.length - self.target_kv_length

    def awaits(self, batch: Batch) -> bool:
        """Whether it waits for what this draft batch brings."""
        return self.phase is Phase.DRAFTING and self.draft_batch is batch

    @property
    def draft_backlog(self) -> int:
        """Tokens of the log its draft worker must be fed before it can propose."""
        return self.length - self.draft_kv_length

    @property
    def is_cold(self) -> bool:
        """Whether its target holds nothing of it."""
        return self.target_kv_length == 0

    @property
    def end_column(self) -> int:
        """The column after its last one in its target's rectangular block."""
        return self.left_pad + self.target_kv_length


@dataclass(slots=True, eq=False)
class Worker:
    """One worker from joining to leaving. Read by everybody, changed by `State` only.

    `rows` are those that live here, in the order they came; each owns one slot.
    """

    worker_id: WorkerId
    role: Role
    num_slots: int
    max_length: int
    join_index: int
    is_rectangular: bool = False
    """Whether rows of a batch must end in one column here."""
    standing: Standing = Standing.SERVING
    is_full: bool = False
    """It refused a row for lack of a slot; until one of its rows leaves or the refusal expires."""
    is_refusing: bool = False
    """It refused a row while it held none of ours, and has served none since."""
    rows: dict[SequenceId, Row] = field(default_factory=dict[SequenceId, Row], repr=False)
    ready: dict[SequenceId, Row] = field(default_factory=dict[SequenceId, Row], repr=False)
    """A target's rows between two rounds, in the order they came to be."""
    wanting: dict[SequenceId, Row] = field(default_factory=dict[SequenceId, Row], repr=False)
    """A draft worker's rows that want a draft, in the order they came to."""
    hungry: dict[SequenceId, Row] = field(default_factory=dict[SequenceId, Row], repr=False)
    """A draft worker's rows that it lacks too much of to draft for; fed while others draft."""
    num_finished: int = 0
    """Rows that have ended and still own their slot."""
    told: set[SequenceId] = field(default_factory=set[SequenceId])
    """Those of its rows that it was sent an order for, so that it may hold something of them."""
    groups: list[Group] = field(default_factory=list["Group"], repr=False)
    """Rounds begun and not sent to be verified yet, oldest first (targets only)."""
    batches: dict[BatchId, Batch] = field(default_factory=dict[BatchId, "Batch"], repr=False)
    """In flight, oldest first."""
    overdue: set[BatchId] = field(default_factory=set[BatchId])
    """Those of them that are not waited for any longer."""

    @property
    def is_draining(self) -> bool:
        """Whether its rows are on their way to another worker."""
        return self.standing is Standing.DRAINING

    @property
    def num_live_rows(self) -> int:
        """Rows that have not ended."""
        return len(self.rows) - self.num_finished

    @property
    def num_in_round(self) -> int:
        """A target's rows in a round: neither between two nor ended."""
        return len(self.rows) - self.num_finished - len(self.ready)

    @property
    def has_free_slot(self) -> bool:
        """Whether one more row may live here."""
        return self.standing is Standing.SERVING and len(self.rows) < self.num_slots


@dataclass(slots=True, eq=False)
class Group:
    """Rows of one target that began a round together. Changed by `State` only.

    Those that end or move meanwhile leave it.
    """

    target: Worker = field(repr=False)
    rows: dict[SequenceId, Row] = field(repr=False)
    forecast: Forecast | None = None
    num_awaited: int = 0
    """Its rows that want a draft or are being drafted; at 0 it can be verified."""
    draft_seconds: float = 0.0
    """The longest that any of its drafts took from sending to reply."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a round was expected to be made of when it began; compared with what it brought.

    `arm` names what was decided (see `adaptive`); the features are those of `passes`.
    """

    arm: tuple[int, int]
    verify_features: tuple[float, ...]
    draft: Worker | None = field(default=None, repr=False)
    draft_features: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Work in flight; `orders[i]` is for `rows[i]`. `group` is that of a verify."""

    batch_id: BatchId
    worker: Worker = field(repr=False)
    rows: tuple[Row, ...] = field(repr=False)
    orders: tuple[DraftOrder, ...] | tuple[VerifyOrder, ...]
    group: Group | None = field(default=None, repr=False)
    is_overlapped: bool = False
    """Whether a worker of the other role was busy when it was sent."""
    patience_seconds: float = 0.0
    """How long a draft batch is waited for."""
