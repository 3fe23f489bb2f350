"""Messages between clients and coordinator, to our values and back. Nowhere else.

Requests are checked here against what is served: an error names the field and its bound.
"""

from __future__ import annotations

from exspec.core import generation as values
from exspec.core.acceptance import FinishReason
from exspec.core.errors import CapacityError, InvalidRequestError, ProtocolError
from exspec.v1 import generation_pb2 as pb
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

MAX_REQUEST_ID_LENGTH = 128
MAX_MODEL_NAME_LENGTH = 512
MAX_BATCH_PROMPTS = 1024

_FINISH_REASONS = {
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_FINISH_REASONS_BACK = {value: key for key, value in _FINISH_REASONS.items()}


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


def batch_item(message: pb.GenerateBatchRequest, index: int) -> pb.GenerateRequest:
    """Prompt `index` of a batch as a request of its own."""
    return pb.GenerateRequest(
        request_id=_item_id(message, index),
        model=message.model,
        prompt=message.prompts[index],
        sampling=message.sampling,
        speculation=message.speculation,
        priority=message.priority,
        resume=message.resumes[index] if message.resumes else None,
    )


def check_batch(message: pb.GenerateBatchRequest) -> None:
    """Bounds of the batch itself; InvalidRequestError names the field."""
    if not 1 <= len(message.prompts) <= MAX_BATCH_PROMPTS:
        raise InvalidRequestError(
            f"prompts must hold 1 to {MAX_BATCH_PROMPTS} prompts, got {len(message.prompts)}",
            field="prompts",
        )
    if len(message.resumes) not in (0, len(message.prompts)):
        raise InvalidRequestError(
            f"resumes must be empty or hold one per prompt, got {len(message.resumes)} for "
            f"{len(message.prompts)}",
            field="resumes",
        )
    _check_request_id(_item_id(message, len(message.prompts) - 1))


def event_to_message(event: values.Event) -> pb.GenerateResponse:
    """One event of a generation."""
    match event:
        case values.Started():
            return pb.GenerateResponse(started=_started(event))
        case values.Delta():
            return pb.GenerateResponse(delta=_delta(event))
        case values.Completed():
            return pb.GenerateResponse(completed=_completed(event))


def event_from_message(message: pb.GenerateResponse) -> values.Event:
    """One event of a generation; ProtocolError when it is none we know."""
    return _event(message, message.WhichOneof("event"))


def batch_event_to_message(index: int, event: values.BatchEvent) -> pb.GenerateBatchResponse:
    """One event of one prompt of a batch."""
    match event:
        case values.Started():
            return pb.GenerateBatchResponse(index=index, started=_started(event))
        case values.Delta():
            return pb.GenerateBatchResponse(index=index, delta=_delta(event))
        case values.Completed():
            return pb.GenerateBatchResponse(index=index, completed=_completed(event))
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


def _item_id(message: pb.GenerateBatchRequest, index: int) -> str:
    return f"{message.request_id}-{index}" if message.request_id else ""


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_LENGTH:
        raise InvalidRequestError(
            f"request_id may have at most {MAX_REQUEST_ID_LENGTH} characters, "
            f"got {len(request_id)}",
            field="request_id",
        )


def _started(event: values.Started) -> pb.GenerationStarted:
    return pb.GenerationStarted(
        request_id=event.request_id,
        model=event.model,
        num_prompt_tokens=event.num_prompt_tokens,
        model_fingerprint=event.model_fingerprint,
        max_tokens=event.max_tokens,
        prompt_sha256=event.prompt_sha256,
    )


def _delta(event: values.Delta) -> pb.GenerationDelta:
    return pb.GenerationDelta(text=event.text, token_ids=event.token_ids)


def _completed(event: values.Completed) -> pb.GenerationCompleted:
    return pb.GenerationCompleted(
        finish_reason=_FINISH_REASONS[event.finish_reason],
        usage=pb.Usage(
            num_prompt_tokens=event.usage.num_prompt_tokens,
            num_generated_tokens=event.usage.num_generated_tokens,
        ),
        speculation=pb.SpeculationStats(
            num_rounds=event.speculation.num_rounds,
            num_draft_tokens=event.speculation.num_draft_tokens,
            num_accepted_tokens=event.speculation.num_accepted_tokens,
        ),
        timings=pb.RequestTimings(
            queue_seconds=event.timings.queue_seconds,
            time_to_first_token_seconds=event.timings.time_to_first_token_seconds,
            total_seconds=event.timings.total_seconds,
        ),
        stop_string=event.stop_string,
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
            return _started_value(message.started)
        case "delta":
            return values.Delta(message.delta.text, tuple(message.delta.token_ids))
        case "completed":
            return _completed_value(message.completed)
        case _:
            raise ProtocolError(f"event {kind} is not known to this version of the client")


def _started_value(message: pb.GenerationStarted) -> values.Started:
    return values.Started(
        message.request_id,
        message.model,
        message.num_prompt_tokens,
        message.model_fingerprint,
        message.max_tokens,
        message.prompt_sha256,
    )


def _completed_value(message: pb.GenerationCompleted) -> values.Completed:
    reason = _FINISH_REASONS_BACK.get(message.finish_reason)
    if reason is None:
        raise ProtocolError(f"finish_reason {message.finish_reason} is not known")
    return values.Completed(
        finish_reason=reason,
        usage=values.Usage(message.usage.num_prompt_tokens, message.usage.num_generated_tokens),
        speculation=values.SpeculationStats(
            message.speculation.num_rounds,
            message.speculation.num_draft_tokens,
            message.speculation.num_accepted_tokens,
        ),
        timings=values.RequestTimings(
            message.timings.queue_seconds,
            message.timings.time_to_first_token_seconds,
            message.timings.total_seconds,
        ),
        stop_string=message.stop_string,
    )
