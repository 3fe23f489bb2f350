"""What is known of a running cluster: workers and totals, as `exspec status` shows them.

Values only; the coordinator fills them in, `exspec.wire.convert_cluster` carries them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum

from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it announces itself.

    `incarnation` is drawn at every start: another one means an empty KV cache. `kv_layout` is empty
    for a worker without KV; `kv_bytes` are preallocated. `draft_for` is the served name of the
    model a draft worker drafts for; empty: whichever it fits.
    """

    worker_id: WorkerId
    incarnation: str
    role: Role
    address: str
    num_slots: int
    model: ModelFacts
    kv_layout: str = ""
    kv_bytes: int = 0
    draft_for: str = ""


class WorkerState(Enum):
    """A worker as the coordinator sees it."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """`reason` says why a worker takes no rows; `pool` is the served name it works for, if any."""

    worker: WorkerInfo
    state: WorkerState
    reason: str = ""
    num_sequences: int = 0
    heartbeat_age_seconds: float = 0.0
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the coordinator started; a round is a verify batch that decided something.

    `round_seconds` run from the first draft order of a round to its commit. Draft, verify, align
    and worker overhead are what the workers report of them; the rest is gRPC and scheduling.
    `num_grouped_rounds` are rounds whose rows all ended in one column, so that nothing had to move;
    `num_overdue_drafts` draft batches that were not waited for any longer; `num_plain_row_rounds`
    rows of rounds that had no draft tokens. `num_looked_up_tokens` of the draft tokens were looked
    up, the others are a draft model's.
    """

    num_requests: int = 0
    num_failed_requests: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_rounds: int = 0
    num_row_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_draft_failures: int = 0
    round_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    align_seconds: float = 0.0
    num_moved_rows: int = 0
    worker_overhead_seconds: float = 0.0
    num_grouped_rounds: int = 0
    num_overdue_drafts: int = 0
    num_plain_row_rounds: int = 0
    num_looked_up_tokens: int = 0
    num_accepted_looked_up_tokens: int = 0

    def since(self, before: Totals) -> Totals:
        """What happened between two looks."""
        names = [field.name for field in fields(Totals)]
        return Totals(**{name: getattr(self, name) - getattr(before, name) for name in names})

    @staticmethod
    def sum_of(parts: Iterable[Totals]) -> Totals:
        """All parts together."""
        kept = tuple(parts)
        return Totals(
            **{one.name: sum(getattr(part, one.name) for part in kept) for one in fields(Totals)}
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens a row gets per round, bonus token included; 0 before a round."""
        return 1 + self.num_accepted_tokens / self.num_row_rounds if self.num_row_rounds else 0.0

    @property
    def num_model_tokens(self) -> int:
        """Draft tokens of a draft model."""
        return self.num_draft_tokens - self.num_looked_up_tokens

    @property
    def num_accepted_model_tokens(self) -> int:
        """How many of those were accepted."""
        return self.num_accepted_tokens - self.num_accepted_looked_up_tokens

    @property
    def rows_per_round(self) -> float:
        """Rows a round decided something for, on average; 0 before a round."""
        return self.num_row_rounds / self.num_rounds if self.num_rounds else 0.0

    @property
    def grouping_rate(self) -> float:
        """Share of the rounds in which nothing had to move; 0 before a round."""
        return self.num_grouped_rounds / self.num_rounds if self.num_rounds else 0.0

    @property
    def moved_rows_per_round(self) -> float:
        """Rows whose KV a round moved, on average; 0 before a round."""
        return self.num_moved_rows / self.num_rounds if self.num_rounds else 0.0

    @property
    def mean_draft_tokens(self) -> float:
        """K of a row and round on average, plain ones included; 0 before a round."""
        return self.num_draft_tokens / self.num_row_rounds if self.num_row_rounds else 0.0

    @property
    def align_share(self) -> float:
        """Share of the rounds' time in which KV was moved; 0 before a round."""
        return self.align_seconds / self.round_seconds if self.round_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One served model: its workers and its requests, apart from those of any other.

    `num_targets` and `num_drafts` count connected workers that take rows.
    """

    name: str
    is_ready: bool = False
    num_targets: int = 0
    num_drafts: int = 0
    num_waiting: int = 0
    num_running: int = 0
    predicted_speedup: float = 0.0
    measured_speedup: float = 0.0
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster. `model` is empty until a target has joined.

    `pools` has one entry per served model; the figures here are sums of theirs, the speedups means
    by generated tokens, and `model` is their names with ", " between them.

    `speculation` is the setting as it was given ("auto", "5", …), `window_size` the most sequences
    in play on one target. Speedups are tokens per second with speculation over plain decoding, as
    the cost model predicts and as measured; 0 while not known.
    """

    version: str
    is_ready: bool
    model: str
    policy: str
    workers: tuple[WorkerStatus, ...] = ()
    num_waiting: int = 0
    num_running: int = 0
    max_waiting: int = 0
    speculation: str = ""
    window_size: int = 0
    predicted_speedup: float = 0.0
    measured_speedup: float = 0.0
    uptime_seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
    pools: tuple[PoolStatus, ...] = ()
