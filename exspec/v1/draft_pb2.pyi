from exspec.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("batch_id", "entries", "released_sequence_ids", "incarnation")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    entries: _containers.RepeatedCompositeFieldContainer[DraftEntry]
    released_sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    incarnation: str
    def __init__(self, batch_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[DraftEntry, _Mapping]]] = ..., released_sequence_ids: _Optional[_Iterable[str]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class DraftEntry(_message.Message):
    __slots__ = ("key", "start", "tokens", "num_draft_tokens", "rules")
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EntryKey
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: int
    rules: _common_pb2.ChoiceRules
    def __init__(self, key: _Optional[_Union[_common_pb2.EntryKey, _Mapping]] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[int] = ..., rules: _Optional[_Union[_common_pb2.ChoiceRules, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("batch_id", "results", "timings")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    results: _containers.RepeatedCompositeFieldContainer[DraftResult]
    timings: _common_pb2.PassTimings
    def __init__(self, batch_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[DraftResult, _Mapping]]] = ..., timings: _Optional[_Union[_common_pb2.PassTimings, _Mapping]] = ...) -> None: ...

class DraftResult(_message.Message):
    __slots__ = ("key", "status", "kv_length", "draft_tokens", "detail", "num_looked_up")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KV_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NUM_LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EntryKey
    status: _common_pb2.EntryStatus
    kv_length: int
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    detail: str
    num_looked_up: int
    def __init__(self, key: _Optional[_Union[_common_pb2.EntryKey, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.EntryStatus, str]] = ..., kv_length: _Optional[int] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., detail: _Optional[str] = ..., num_looked_up: _Optional[int] = ...) -> None: ...
