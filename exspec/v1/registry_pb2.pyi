from exspec.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_JOINING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_LOST: _ClassVar[WorkerState]
    WORKER_STATE_REFUSED: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_JOINING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_LOST: WorkerState
WORKER_STATE_REFUSED: WorkerState

class RegisterRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerInfo
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerInfo, _Mapping]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("lease_seconds", "heartbeat_seconds")
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: float
    heartbeat_seconds: float
    def __init__(self, lease_seconds: _Optional[float] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("is_known", "should_stop")
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    SHOULD_STOP_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    should_stop: bool
    def __init__(self, is_known: _Optional[bool] = ..., should_stop: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("num_moved_sequences",)
    NUM_MOVED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    num_moved_sequences: int
    def __init__(self, num_moved_sequences: _Optional[int] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("num_moved_sequences",)
    NUM_MOVED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    num_moved_sequences: int
    def __init__(self, num_moved_sequences: _Optional[int] = ...) -> None: ...

class GetClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "state", "reason", "num_sequences", "heartbeat_age_seconds", "pool")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.WorkerInfo
    state: WorkerState
    reason: str
    num_sequences: int
    heartbeat_age_seconds: float
    pool: str
    def __init__(self, worker: _Optional[_Union[_common_pb2.WorkerInfo, _Mapping]] = ..., state: _Optional[_Union[WorkerState, str]] = ..., reason: _Optional[str] = ..., num_sequences: _Optional[int] = ..., heartbeat_age_seconds: _Optional[float] = ..., pool: _Optional[str] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("num_requests", "num_failed_requests", "num_prompt_tokens", "num_generated_tokens", "num_rounds", "num_row_rounds", "num_draft_tokens", "num_accepted_tokens", "num_draft_failures", "round_seconds", "draft_seconds", "verify_seconds", "align_seconds", "num_moved_rows", "worker_overhead_seconds", "num_grouped_rounds", "num_overdue_drafts", "num_plain_row_rounds", "num_looked_up_tokens", "num_accepted_looked_up_tokens")
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROW_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALIGN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_MOVED_ROWS_FIELD_NUMBER: _ClassVar[int]
    WORKER_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_OVERDUE_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PLAIN_ROW_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKED_UP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_LOOKED_UP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    num_failed_requests: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_rounds: int
    num_row_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_draft_failures: int
    round_seconds: float
    draft_seconds: float
    verify_seconds: float
    align_seconds: float
    num_moved_rows: int
    worker_overhead_seconds: float
    num_grouped_rounds: int
    num_overdue_drafts: int
    num_plain_row_rounds: int
    num_looked_up_tokens: int
    num_accepted_looked_up_tokens: int
    def __init__(self, num_requests: _Optional[int] = ..., num_failed_requests: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_rounds: _Optional[int] = ..., num_row_rounds: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_draft_failures: _Optional[int] = ..., round_seconds: _Optional[float] = ..., draft_seconds: _Optional[float] = ..., verify_seconds: _Optional[float] = ..., align_seconds: _Optional[float] = ..., num_moved_rows: _Optional[int] = ..., worker_overhead_seconds: _Optional[float] = ..., num_grouped_rounds: _Optional[int] = ..., num_overdue_drafts: _Optional[int] = ..., num_plain_row_rounds: _Optional[int] = ..., num_looked_up_tokens: _Optional[int] = ..., num_accepted_looked_up_tokens: _Optional[int] = ...) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("name", "is_ready", "num_targets", "num_drafts", "num_waiting", "num_running", "predicted_speedup", "measured_speedup", "totals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    NUM_TARGETS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    MEASURED_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_ready: bool
    num_targets: int
    num_drafts: int
    num_waiting: int
    num_running: int
    predicted_speedup: float
    measured_speedup: float
    totals: Totals
    def __init__(self, name: _Optional[str] = ..., is_ready: _Optional[bool] = ..., num_targets: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., predicted_speedup: _Optional[float] = ..., measured_speedup: _Optional[float] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ...) -> None: ...

class GetClusterStatusResponse(_message.Message):
    __slots__ = ("version", "is_ready", "model", "policy", "workers", "num_waiting", "num_running", "max_waiting", "totals", "uptime_seconds", "speculation", "window_size", "predicted_speedup", "measured_speedup", "pools")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    MEASURED_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    version: str
    is_ready: bool
    model: str
    policy: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    num_waiting: int
    num_running: int
    max_waiting: int
    totals: Totals
    uptime_seconds: float
    speculation: str
    window_size: int
    predicted_speedup: float
    measured_speedup: float
    pools: _containers.RepeatedCompositeFieldContainer[PoolStatus]
    def __init__(self, version: _Optional[str] = ..., is_ready: _Optional[bool] = ..., model: _Optional[str] = ..., policy: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., max_waiting: _Optional[int] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., uptime_seconds: _Optional[float] = ..., speculation: _Optional[str] = ..., window_size: _Optional[int] = ..., predicted_speedup: _Optional[float] = ..., measured_speedup: _Optional[float] = ..., pools: _Optional[_Iterable[_Union[PoolStatus, _Mapping]]] = ...) -> None: ...
