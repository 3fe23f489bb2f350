"""The nouns of the scheduler: phases with their table of legal moves, rows, workers, batches.

Rows and workers are read by everybody and changed by `state.State` alone. No decision lives here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from exspec.core.errors import InternalError
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId


class SchedulerError(InternalError):
    """An event that cannot happen now. The state is as it was before."""


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    """Has no home; owns no slot anywhere."""
    WANTS_DRAFT = "wants_draft"
    DRAFTING = "drafting"
    """In a draft batch in flight. Its target may be lost meanwhile: then it has none."""
    WANTS_VERIFY = "wants_verify"
    VERIFYING = "verifying"
    FINISHED = "finished"
    """Ended; still owns its slots while a batch with it is in flight, then it is forgotten."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is Python code


MOVES: dict[Phase, frozenset[Phase]] = {
    # a place at a target was found
    Phase.WAITING: frozenset({Phase.WANTS_VERIFY, Phase.FINISHED}),
    # ordered; or the draft worker left; or the target left
    Phase.WANTS_DRAFT: frozenset(
        {Phase.DRAFTING, Phase.WANTS_VERIFY, Phase.WAITING, Phase.FINISHED}
    ),
    # answered, with or without drafts; and the target may have left
    Phase.DRAFTING: frozenset({Phase.WANTS_VERIFY, Phase.WAITING, Phase.FINISHED}),
    # ordered; or the target left
    Phase.WANTS_VERIFY: frozenset({Phase.VERIFYING, Phase.WAITING, Phase.FINISHED}),
    # a round ended
    Phase.VERIFYING: frozenset(
        {Phase.WANTS_DRAFT, Phase.WANTS_VERIFY, Phase.WAITING, Phase.FINISHED}
    ),
    Phase.FINISHED: frozenset(),
}


class Standing(Enum):
    """Whether a worker may be given new rows. A worker that left is no member at all."""

    SERVING = "serving"
    DRAINING = "draining"


def no_rows() -> dict[Phase, int]:
    """Zero for every phase."""
    return dict.fromkeys(Phase, 0)


@dataclass(slots=True, eq=False)
class Row:
    """One sequence. Read by everybody, changed by `State` only.

    Epochs rise whenever a home changes or restarts from nothing; `round_index` rises with every
    order. `kv_length`s are what a home is believed to hold of the log.
    """

    sequence_id: SequenceId
    arrival_index: int
    length: int
    max_length: int
    max_draft_tokens: int | None
    phase: Phase = Phase.WAITING
    batch: Batch | None = None
    round_index: int = 0
    num_failures: int = 0
    """Failed verifies since the last committed token."""

    target: Worker | None = None
    target_epoch: int = 0
    target_kv_length: int = 0
    left_pad: int = 0
    """Empty columns before it in the target's rectangular block (see `exspec.core.alignment`)."""

    draft: Worker | None = None
    draft_epoch: int = 0
    draft_kv_length: int = 0
    num_drafted: int = 0
    """Draft tokens staged for the next verify."""
    num_draft_failures: int = 0
    """In a row, at the present draft worker."""
    refused_drafts: frozenset[int] = frozenset()
    """`join_index` of draft workers that shall not be asked again for this row."""

    @property
    def num_lacking(self) -> int:
        """Tokens of the log the target must be fed before it can choose; at least the last one."""
        return self.length - self.target_kv_length


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
    standing: Standing = Standing.SERVING
    is_full: bool = False
    """It refused a row for lack of a slot; true until one of its rows leaves."""
    rows: dict[SequenceId, Row] = field(default_factory=dict[SequenceId, Row])
    num_rows_in: dict[Phase, int] = field(default_factory=no_rows)
    told: set[SequenceId] = field(default_factory=set[SequenceId])
    """Those of its rows that it was sent an order for, so that it may hold something of them."""
    batch: Batch | None = None

    @property
    def is_draining(self) -> bool:
        """Whether its rows are on their way to another worker."""
        return self.standing is Standing.DRAINING

    @property
    def num_live_rows(self) -> int:
        """Rows that have not ended."""
        return len(self.rows) - self.num_rows_in[Phase.FINISHED]

    @property
    def has_free_slot(self) -> bool:
        """Whether one more row may live here."""
        return self.standing is Standing.SERVING and len(self.rows) < self.num_slots

    def rows_in(self, phase: Phase) -> tuple[Row, ...]:
        """Its rows in a phase, oldest first."""
        return tuple(row for row in self.rows.values() if row.phase is phase)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Work in flight; `orders[i]` is for `rows[i]`."""

    batch_id: BatchId
    worker: Worker
    rows: tuple[Row, ...]
    orders: tuple[DraftOrder, ...] | tuple[VerifyOrder, ...]
