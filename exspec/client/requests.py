"""From what a caller writes to the messages that travel: prompts, keywords, bounds. Pure.

Both clients build their requests here, and only here. Nothing in this file talks to anyone.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar, cast

from google.protobuf.message import Message

from exspec.core.errors import InvalidRequestError
from exspec.core.generation import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from exspec.core.params import (
    DEFAULT_MAX_TOKENS,
    SamplingParams,
    SpeculationParams,
    check_priority,
)
from exspec.v1 import generation_pb2 as pb
from exspec.wire.channel import MAX_REQUEST_BYTES
from exspec.wire.convert_generation import (
    request_to_message,
    sampling_to_message,
    speculation_to_message,
)
from exspec.wire.convert_prompt import check_num_ids, prompt_to_message

PromptInput = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]] | Prompt
"""Text, token ids, or a conversation (the model's chat template is applied by the coordinator)."""

M = TypeVar("M", bound=Message)

_MAX_TOKEN_ID = 2**32 - 1
_MAX_COUNT = 2**31 - 1


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate`, `stream`, `generate_batch` and `stream_batch`; all may be left out.

    max_tokens: most tokens to generate; None: 256, or what the context leaves if that is less.
    stop: a string, or strings, that end the text before them.
    stop_token_ids: token ids that end it, besides the model's own.
    ignore_eos: go on after the model's own stop tokens.
    num_speculative_tokens: draft tokens per round, 0 = plain decoding; None: the cluster's setting.
        Never changes what is generated.
    priority: turn in the queue, -1000 to 1000: lower is sooner, 0 is usual.
    model: served name; empty: the only one.
    request_id: unique name of the call; empty: drawn here.
    timeout: seconds for the whole call, retries included; None: the client's.
    """

    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    num_speculative_tokens: int | None
    priority: int
    model: str
    request_id: str
    timeout: float | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What is the same for every call: its id, and the timeout if the caller gave one."""

    request_id: str
    timeout: float | None


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """A single generation, ready to be sent."""

    call: CallPlan
    message: pb.GenerateRequest


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch, ready to be sent."""

    call: CallPlan
    message: pb.GenerateBatchRequest


def plan_generate(prompt: PromptInput, options: GenerateOptions) -> GeneratePlan:
    """A generation as it travels.

    Raises:
        InvalidRequestError: a field is out of bounds; carries the request id.
        TypeError: an unknown keyword.
    """
    given = _Options(**options)
    try:
        request = GenerationRequest(
            parse_prompt(prompt),
            given.sampling(),
            SpeculationParams(given.num_speculative_tokens),
            given.request_id,
            given.model,
            has_max_tokens=given.max_tokens is not None,
            priority=given.priority,
        )
        return GeneratePlan(given.call(), _sized(request_to_message(request), "prompt"))
    except (InvalidRequestError, ValueError) as error:
        raise _with_id(error, given.request_id) from error


def plan_batch(prompts: Sequence[PromptInput], options: GenerateOptions) -> BatchPlan:
    """Several generations with one set of parameters as they travel. Raises as `plan_generate`."""
    given = _Options(**options)
    try:
        check_priority(given.priority)
        message = pb.GenerateBatchRequest(
            request_id=given.request_id,
            model=given.model,
            prompts=_prompts(prompts),
            sampling=sampling_to_message(given.sampling()),
            speculation=speculation_to_message(SpeculationParams(given.num_speculative_tokens)),
            priority=given.priority,
        )
        if given.max_tokens is None:
            message.sampling.ClearField("max_tokens")
        return BatchPlan(given.call(), _sized(message, "prompts"))
    except (InvalidRequestError, ValueError) as error:
        raise _with_id(error, given.request_id) from error


def plan_tokenize(prompt: PromptInput, model: str) -> pb.TokenizeRequest:
    """Text or chat to be tokenized, as it travels."""
    message = pb.TokenizeRequest(model=model, prompt=prompt_to_message(parse_prompt(prompt)))
    return _sized(message, "prompt")


def plan_detokenize(token_ids: Sequence[int], model: str) -> pb.DetokenizeRequest:
    """Token ids to be turned into text, as they travel."""
    message = pb.DetokenizeRequest(model=model, token_ids=_ids(token_ids, "token_ids"))
    return _sized(message, "token_ids")


def parse_prompt(prompt: PromptInput) -> Prompt:
    """A prompt as a value; InvalidRequestError when it is none of the three kinds.

    An empty one is left to the coordinator, which refuses it without touching its batch.
    """
    if isinstance(prompt, TextPrompt | TokenPrompt | ChatPrompt):
        return prompt
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    items = _items(prompt)
    if items and isinstance(items[0], ChatMessage | Mapping):
        return ChatPrompt(tuple(_message(item) for item in items))
    return TokenPrompt(_ids(cast("Sequence[int]", items), "prompt"))


def new_request_id() -> str:
    """A name no other call has."""
    return f"req-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class _Options:
    """`GenerateOptions` with their defaults."""

    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    num_speculative_tokens: int | None = None
    priority: int = 0
    model: str = ""
    request_id: str = ""
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not self.request_id:
            object.__setattr__(self, "request_id", new_request_id())

    def call(self) -> CallPlan:
        return CallPlan(self.request_id, self.timeout)

    def sampling(self) -> SamplingParams:
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if max_tokens > _MAX_COUNT:
            raise InvalidRequestError(
                f"max_tokens must be at most {_MAX_COUNT}, got {max_tokens}", field="max_tokens"
            )
        return SamplingParams(
            max_tokens=max_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=_ids(self.stop_token_ids, "stop_token_ids"),
            ignore_eos=self.ignore_eos,
        )


def _prompts(prompts: Sequence[PromptInput]) -> list[pb.Prompt]:
    if isinstance(prompts, str):
        raise InvalidRequestError(
            "prompts must be a list of prompts, got one string", field="prompts"
        )
    return [prompt_to_message(parse_prompt(prompt)) for prompt in prompts]


def _sized(message: M, field: str) -> M:
    """The message, if the coordinator takes one so large."""
    if (num_bytes := message.ByteSize()) > MAX_REQUEST_BYTES:
        raise InvalidRequestError(
            f"the request has {num_bytes} bytes with its {field}; a coordinator takes "
            f"{MAX_REQUEST_BYTES}",
            field=field,
        )
    return message


def _items(prompt: object) -> list[object]:
    check_num_ids("prompt", operator.length_hint(prompt))
    try:
        return list(cast("Sequence[object]", prompt))
    except TypeError as error:
        raise InvalidRequestError(
            f"prompt must be text, token ids or chat messages, got {type(prompt).__name__}",
            field="prompt",
        ) from error


def _message(item: object) -> ChatMessage:
    if isinstance(item, ChatMessage):
        return item
    if isinstance(item, Mapping):
        message = cast("Mapping[str, object]", item)
        role, content = message.get("role"), message.get("content")
        if isinstance(role, str) and isinstance(content, str) and len(message) == 2:
            return ChatMessage(role, content)
    raise InvalidRequestError(
        "each chat message must have a role and a content, both text, and nothing else",
        field="prompt",
    )


def _ids(token_ids: Sequence[int], field: str) -> tuple[int, ...]:
    check_num_ids(field, operator.length_hint(token_ids))
    try:
        ids = tuple(operator.index(token_id) for token_id in token_ids)
    except TypeError as error:
        raise InvalidRequestError(f"{field} must hold whole numbers", field=field) from error
    for token_id in ids:
        if not 0 <= token_id <= _MAX_TOKEN_ID:
            raise InvalidRequestError(f"{field} must hold token ids, got {token_id}", field=field)
    return ids


def _with_id(error: Exception, request_id: str) -> InvalidRequestError:
    """The error under its request id; protobuf's ValueErrors (lone surrogates) become ours."""
    if not isinstance(error, InvalidRequestError):
        return InvalidRequestError(f"the request cannot be sent: {error}", request_id=request_id)
    error.request_id = request_id
    return error
