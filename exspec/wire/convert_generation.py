"""Messages between clients and coordinator, to our values and back. Nowhere else.

Requests are checked here against what is served: an error names the field and its bound.
"""

from __future__ import annotations

from exspec.core import generation as values
from exspec.core.choosing import derive_seed
from exspec.core.errors import CapacityError, InvalidRequestError, ProtocolError
from exspec.core.params import check_num_completions
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_events import (
    completed_from_message,
    completed_to_message,
    delta_from_message,
    delta_to_message,
    started_from_message,
    started_to_message,
)
from exspec.wire.convert_prompt import (
    prompt_from_message,
    prompt_to_message,
    resume_from_message,
    resume_to_message,
)
from exspec.wire.convert_sampling import (
    sampling_from_message,
    sampling_to_message,
    speculation_from_message,
    speculation_to_message,
)
from exspec.wire.status import bounded, build_error, code_of
from exspec.wire.unknown import refuse_unknown_at_top, refuse_unknown_fields

MAX_REQUEST_ID_LENGTH = 128
MAX_MODEL_NAME_LENGTH = 512
MAX_BATCH_SEQUENCES = 1024
"""Of one batch: prompts times completions of each."""
MAX_BATCH_LISTED = 1 << 22
"""Token ids and characters of bad words that a batch may list, counted for every sequence."""
MAX_BATCH_REPORTED = 1 << 22
"""Logprobs of prompts that a batch may ask for: a caller that reads late has them all held."""


def request_to_message(request: values.GenerationRequest) -> pb.GenerateRequest:
    """A generation as it travels."""
    message = pb.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        prompt=prompt_to_message(request.prompt),
        sampling=sampling_to_message(request.sampling),
        speculation=speculation_to_message(request.speculation),
        priority=request.priority,
    )
    if request.resume is not None:
        message.resume.CopyFrom(resume_to_message(request.resume))
    if not request.has_max_tokens:
        message.sampling.ClearField("max_tokens")
    return message


def request_from_message(message: pb.GenerateRequest) -> values.GenerationRequest:
    """A generation; InvalidRequestError names the field at fault."""
    refuse_unknown_fields(message)
    _check_request_id(message.request_id)
    return values.GenerationRequest(
        prompt=prompt_from_message(message.prompt),
        sampling=sampling_from_message(message.sampling),
        speculation=speculation_from_message(message.speculation),
        request_id=message.request_id,
        model=message.model,
        has_max_tokens=message.sampling.HasField("max_tokens"),
        priority=message.priority,
        resume=resume_from_message(message.resume),
    )


def num_sequences(message: pb.GenerateBatchRequest) -> int:
    """How many sequences a batch asks for."""
    return len(message.prompts) * _num_completions(message)


def batch_item(message: pb.GenerateBatchRequest, index: int) -> pb.GenerateRequest:
    """Sequence `index` of a batch as a request of its own; its seed is derived if one is stated."""
    item = pb.GenerateRequest(
        request_id=_item_id(message, index),
        model=message.model,
        prompt=message.prompts[index // _num_completions(message)],
        sampling=message.sampling,
        speculation=message.speculation,
        priority=message.priority,
        resume=message.resumes[index] if message.resumes else None,
    )
    if message.sampling.HasField("seed"):
        item.sampling.seed = derive_seed(message.sampling.seed, index)
    return item


def check_batch(message: pb.GenerateBatchRequest) -> None:
    """Bounds of the batch itself; InvalidRequestError names the field.

    What is at fault in one prompt is found when that is read.
    """
    refuse_unknown_at_top(message)
    check_num_completions(_num_completions(message))
    if not 1 <= len(message.prompts) <= MAX_BATCH_SEQUENCES:
        raise InvalidRequestError(
            f"prompts must hold 1 to {MAX_BATCH_SEQUENCES} prompts, got {len(message.prompts)}",
            field="prompts",
        )
    number = num_sequences(message)
    if number > MAX_BATCH_SEQUENCES:
        raise InvalidRequestError(
            f"prompts times n may be at most {MAX_BATCH_SEQUENCES}, got {len(message.prompts)} "
            f"times {message.n}",
            field="n",
        )
    if len(message.resumes) not in (0, number):
        raise InvalidRequestError(
            f"resumes must be empty or hold one per sequence, got {len(message.resumes)} for "
            f"{number}",
            field="resumes",
        )
    _check_request_id(_item_id(message, number - 1))
    _check_listed(message.sampling, number)
    _check_reported(message)


def event_to_message(event: values.Event) -> pb.GenerateResponse:
    """One event of a generation."""
    match event:
        case values.Started():
            return pb.GenerateResponse(started=started_to_message(event))
        case values.Delta():
            return pb.GenerateResponse(delta=delta_to_message(event))
        case values.Completed():
            return pb.GenerateResponse(completed=completed_to_message(event))


def event_from_message(message: pb.GenerateResponse) -> values.Event:
    """One event of a generation; ProtocolError when it is none we know."""
    return _event(message, message.WhichOneof("event"))


def batch_event_to_message(index: int, event: values.BatchEvent) -> pb.GenerateBatchResponse:
    """One event of one prompt of a batch."""
    match event:
        case values.Started():
            return pb.GenerateBatchResponse(index=index, started=started_to_message(event))
        case values.Delta():
            return pb.GenerateBatchResponse(index=index, delta=delta_to_message(event))
        case values.Completed():
            return pb.GenerateBatchResponse(index=index, completed=completed_to_message(event))
        case values.Failed():
            return pb.GenerateBatchResponse(index=index, error=_error(event))


def batch_event_from_message(message: pb.GenerateBatchResponse) -> values.BatchEvent:
    """One event of one prompt of a batch; ProtocolError when it is none we know."""
    kind = message.WhichOneof("event")
    if kind == "error":
        error = message.error
        return values.Failed(
            build_error(
                error.reason,
                error.code,
                error.message,
                field=error.field,
                retry_after_seconds=error.retry_after_seconds,
            )
        )
    return _event(message, kind)


def _num_completions(message: pb.GenerateBatchRequest) -> int:
    return message.n or 1


def _check_listed(sampling: pb.SamplingParams, number: int) -> None:
    """Lists are short, or the sequences few: each of them is checked, and sent, with its lists."""
    sizes = {
        "allowed_token_ids": len(sampling.allowed_token_ids),
        "banned_token_ids": len(sampling.banned_token_ids),
        "bad_words_ids": sum(len(word.token_ids) for word in sampling.bad_words_ids),
        "bad_words": sum(map(len, sampling.bad_words)),
    }
    for field, size in sizes.items():
        if size * number > MAX_BATCH_LISTED:
            raise InvalidRequestError(
                f"{field} has {size} items for each of {number} sequences; at most "
                f"{MAX_BATCH_LISTED} may be listed in a batch: send fewer prompts at once",
                field=field,
            )


def _check_reported(message: pb.GenerateBatchRequest) -> None:
    """Text is not tokenized yet: it has at most as many tokens as bytes."""
    if not message.sampling.HasField("prompt_logprobs"):
        return
    num_tokens = sum(
        len(p.token_ids.ids) if p.HasField("token_ids") else p.ByteSize() for p in message.prompts
    )
    num_each = message.sampling.prompt_logprobs + 1
    num_reported = num_tokens * _num_completions(message) * num_each
    if num_reported > MAX_BATCH_REPORTED:
        raise InvalidRequestError(
            f"prompt_logprobs may come to {num_reported} logprobs in this batch; "
            f"{MAX_BATCH_REPORTED} may be: send fewer prompts at once",
            field="prompt_logprobs",
        )


def _item_id(message: pb.GenerateBatchRequest, index: int) -> str:
    return f"{message.request_id}-{index}" if message.request_id else ""


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        raise InvalidRequestError(
            f"request_id may have at most {MAX_REQUEST_ID_LENGTH} characters, "
            f"got {len(request_id)}",
            field="request_id",
        )


def _error(event: values.Failed) -> pb.GenerationError:
    error = event.error
    return pb.GenerationError(
        code=code_of(error),
        reason=type(error).__name__,
        message=bounded(error.message),
        field=error.field if isinstance(error, InvalidRequestError) else "",
        retry_after_seconds=(
            error.retry_after_seconds if isinstance(error, CapacityError) else 0.0
        ),
    )


def _event(
    message: pb.GenerateResponse | pb.GenerateBatchResponse, kind: str | None
) -> values.Event:
    match kind:
        case "started":
            return started_from_message(message.started)
        case "delta":
            return delta_from_message(message.delta)
        case "completed":
            return completed_from_message(message.completed)
        case _:
            raise ProtocolError(f"event {kind} is not known to this version of the client")
