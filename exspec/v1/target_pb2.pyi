from exspec.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("batch_id", "entries", "released_sequence_ids", "incarnation")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    entries: _containers.RepeatedCompositeFieldContainer[VerifyEntry]
    released_sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    incarnation: str
    def __init__(self, batch_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[VerifyEntry, _Mapping]]] = ..., released_sequence_ids: _Optional[_Iterable[str]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class VerifyEntry(_message.Message):
    __slots__ = ("key", "start", "tokens", "draft_tokens", "is_prefill", "rules", "next_token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_PREFILL_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EntryKey
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    is_prefill: bool
    rules: _common_pb2.ChoiceRules
    next_token: int
    def __init__(self, key: _Optional[_Union[_common_pb2.EntryKey, _Mapping]] = ..., start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., is_prefill: _Optional[bool] = ..., rules: _Optional[_Union[_common_pb2.ChoiceRules, _Mapping]] = ..., next_token: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("batch_id", "results", "timings")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    results: _containers.RepeatedCompositeFieldContainer[VerifyResult]
    timings: _common_pb2.PassTimings
    def __init__(self, batch_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[VerifyResult, _Mapping]]] = ..., timings: _Optional[_Union[_common_pb2.PassTimings, _Mapping]] = ...) -> None: ...

class VerifyResult(_message.Message):
    __slots__ = ("key", "status", "kv_length", "num_accepted", "bonus_token", "detail", "logprobs", "prompt_start", "prompt_logprobs")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KV_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BONUS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_START_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.EntryKey
    status: _common_pb2.EntryStatus
    kv_length: int
    num_accepted: int
    bonus_token: int
    detail: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    prompt_start: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, key: _Optional[_Union[_common_pb2.EntryKey, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.EntryStatus, str]] = ..., kv_length: _Optional[int] = ..., num_accepted: _Optional[int] = ..., bonus_token: _Optional[int] = ..., detail: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., prompt_start: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("tokenizer_json", "chat_template", "special_tokens")
    class SpecialTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokenizer_json: str
    chat_template: str
    special_tokens: _containers.ScalarMap[str, str]
    def __init__(self, tokenizer_json: _Optional[str] = ..., chat_template: _Optional[str] = ..., special_tokens: _Optional[_Mapping[str, str]] = ...) -> None: ...
