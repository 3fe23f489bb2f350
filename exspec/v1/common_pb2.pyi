from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_DRAFT: _ClassVar[Role]
    ROLE_TARGET: _ClassVar[Role]

class EntryStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_STATUS_UNSPECIFIED: _ClassVar[EntryStatus]
    ENTRY_STATUS_OK: _ClassVar[EntryStatus]
    ENTRY_STATUS_LACKS_TOKENS: _ClassVar[EntryStatus]
    ENTRY_STATUS_STALE: _ClassVar[EntryStatus]
    ENTRY_STATUS_NO_CAPACITY: _ClassVar[EntryStatus]
    ENTRY_STATUS_INVALID: _ClassVar[EntryStatus]
    ENTRY_STATUS_FAILED: _ClassVar[EntryStatus]
ROLE_UNSPECIFIED: Role
ROLE_DRAFT: Role
ROLE_TARGET: Role
ENTRY_STATUS_UNSPECIFIED: EntryStatus
ENTRY_STATUS_OK: EntryStatus
ENTRY_STATUS_LACKS_TOKENS: EntryStatus
ENTRY_STATUS_STALE: EntryStatus
ENTRY_STATUS_NO_CAPACITY: EntryStatus
ENTRY_STATUS_INVALID: EntryStatus
ENTRY_STATUS_FAILED: EntryStatus

class ModelInfo(_message.Message):
    __slots__ = ("name", "architecture", "vocab_size", "tokenizer_size", "tokenizer_sha256", "max_length", "stop_token_ids", "dtype", "device", "num_parameters", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    vocab_size: int
    tokenizer_size: int
    tokenizer_sha256: str
    max_length: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    device: str
    num_parameters: int
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_size: _Optional[int] = ..., tokenizer_sha256: _Optional[str] = ..., max_length: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., num_parameters: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "incarnation", "role", "address", "num_slots", "model", "kv_layout", "kv_bytes", "draft_for")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FOR_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    role: Role
    address: str
    num_slots: int
    model: ModelInfo
    kv_layout: str
    kv_bytes: int
    draft_for: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ..., num_slots: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., kv_layout: _Optional[str] = ..., kv_bytes: _Optional[int] = ..., draft_for: _Optional[str] = ...) -> None: ...

class EntryKey(_message.Message):
    __slots__ = ("sequence_id", "epoch", "round_index")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    sequence_id: str
    epoch: int
    round_index: int
    def __init__(self, sequence_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round_index: _Optional[int] = ...) -> None: ...

class PassTimings(_message.Message):
    __slots__ = ("queue_seconds", "align_seconds", "forward_seconds", "total_seconds", "num_rows", "num_tokens", "num_moved_rows")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALIGN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_MOVED_ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    align_seconds: float
    forward_seconds: float
    total_seconds: float
    num_rows: int
    num_tokens: int
    num_moved_rows: int
    def __init__(self, queue_seconds: _Optional[float] = ..., align_seconds: _Optional[float] = ..., forward_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., num_rows: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_moved_rows: _Optional[int] = ...) -> None: ...
