"""From what a caller writes to the messages that travel: prompts, keywords, bounds. Pure.

Both clients build their requests here, and only here. Nothing in this file talks to anyone.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from google.protobuf.message import Message

from exspec.client import values
from exspec.client.options import BatchOptions, CallPlan, GenerateOptions, Options
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from exspec.v1 import generation_pb2 as pb
from exspec.wire.channel import MAX_REQUEST_BYTES
from exspec.wire.convert_generation import (
    check_batch,
    request_to_message,
    sampling_to_message,
    speculation_to_message,
)
from exspec.wire.convert_prompt import check_num_ids, prompt_to_message

PromptInput = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]] | Prompt
"""Text, token ids, or a conversation (the model's chat template is applied by the coordinator)."""

M = TypeVar("M", bound=Message)


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
        InvalidRequestError: a field is out of bounds or of the wrong type; carries the request id.
        TypeError: an unknown keyword.
    """
    given = Options(options, GenerateOptions)
    try:
        call = given.call()
        request = GenerationRequest(
            parse_prompt(prompt),
            given.sampling(),
            given.speculation(),
            given.request_id,
            given.model(),
            has_max_tokens=given.has_max_tokens,
            priority=given.priority(),
        )
        return GeneratePlan(call, _sized(request_to_message(request), "prompt"))
    except (InvalidRequestError, ValueError) as error:
        raise _with_id(error, given.request_id) from error


def plan_batch(prompts: Sequence[PromptInput], options: BatchOptions) -> BatchPlan:
    """Several generations with one set of parameters as they travel. Raises as `plan_generate`."""
    given = Options(options, BatchOptions)
    try:
        call = given.call()
        message = pb.GenerateBatchRequest(
            request_id=given.request_id,
            model=given.model(),
            prompts=_prompts(prompts),
            sampling=sampling_to_message(given.sampling()),
            speculation=speculation_to_message(given.speculation()),
            priority=given.priority(),
            n=given.num_completions(),
        )
        if not given.has_max_tokens:
            message.sampling.ClearField("max_tokens")
        check_batch(message)
        return BatchPlan(call, _sized(message, "prompts"))
    except (InvalidRequestError, ValueError) as error:
        raise _with_id(error, given.request_id) from error


def plan_tokenize(prompt: PromptInput, model: str) -> pb.TokenizeRequest:
    """Text or chat to be tokenized, as it travels."""
    message = pb.TokenizeRequest(model=model, prompt=prompt_to_message(parse_prompt(prompt)))
    return _sized(message, "prompt")


def plan_detokenize(token_ids: Sequence[int], model: str) -> pb.DetokenizeRequest:
    """Token ids to be turned into text, as they travel."""
    message = pb.DetokenizeRequest(model=model, token_ids=values.token_ids("token_ids", token_ids))
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
    return TokenPrompt(values.token_ids("prompt", items))


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


def _with_id(error: Exception, request_id: str) -> InvalidRequestError:
    """The error under its request id; protobuf's ValueErrors (lone surrogates) become ours."""
    if not isinstance(error, InvalidRequestError):
        return InvalidRequestError(f"the request cannot be sent: {error}", request_id=request_id)
    error.request_id = request_id
    return error
