"""What is known of a running cluster: workers and totals, as `exspec status` shows them.

Values only; the coordinator fills them in, `exspec.wire.convert_cluster` carries them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it announces itself.

    `incarnation` is drawn at every start: another one means an empty KV cache. `kv_layout` is empty
    for a worker without KV; `kv_bytes` are preallocated.
    """

    worker_id: WorkerId
    incarnation: str
    role: Role
    address: str
    num_slots: int
    model: ModelFacts
    kv_layout: str = ""
    kv_bytes: int = 0


class WorkerState(Enum):
    """A worker as the coordinator sees it."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """`reason` says why a worker was refused or lost."""

    worker: WorkerInfo
    state: WorkerState
    reason: str = ""
    num_sequences: int = 0
    heartbeat_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the coordinator started; a round is a verify batch that decided something.

    `round_seconds` run from the first draft order of a round to its commit. Draft, verify, align
    and worker overhead are what the workers report of them; the rest is gRPC and scheduling.
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


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster. `model` is empty until a target has joined."""

    version: str
    is_ready: bool
    model: str
    policy: str
    workers: tuple[WorkerStatus, ...] = ()
    num_waiting: int = 0
    num_running: int = 0
    max_waiting: int = 0
    num_speculative_tokens: int = 0
    uptime_seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
