"""What a client is told of one sequence, to our values and back. Nowhere else."""

from __future__ import annotations

from exspec.core import generation as values
from exspec.core.acceptance import FinishReason
from exspec.core.errors import ProtocolError
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_rules import logprobs_from_messages, logprobs_to_messages

_FINISH_REASONS = {
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_FINISH_REASONS_BACK = {value: key for key, value in _FINISH_REASONS.items()}


def started_to_message(event: values.Started) -> pb.GenerationStarted:
    """The first event, as it travels."""
    return pb.GenerationStarted(
        request_id=event.request_id,
        model=event.model,
        num_prompt_tokens=event.num_prompt_tokens,
        model_fingerprint=event.model_fingerprint,
        max_tokens=event.max_tokens,
        prompt_sha256=event.prompt_sha256,
        seed=event.seed,
    )


def delta_to_message(event: values.Delta) -> pb.GenerationDelta:
    """Tokens and text, as they travel."""
    return pb.GenerationDelta(
        text=event.text,
        token_ids=event.token_ids,
        logprobs=logprobs_to_messages(event.logprobs),
        prompt_logprobs=logprobs_to_messages(event.prompt_logprobs),
    )


def completed_to_message(event: values.Completed) -> pb.GenerationCompleted:
    """The last event, as it travels."""
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
            num_wasted_tokens=event.speculation.num_wasted_tokens,
            num_drafts_per_position=event.speculation.num_drafts_per_position,
            num_accepted_per_position=event.speculation.num_accepted_per_position,
            num_looked_up_tokens=event.speculation.num_looked_up_tokens,
            num_accepted_looked_up_tokens=event.speculation.num_accepted_looked_up_tokens,
        ),
        timings=pb.RequestTimings(
            queue_seconds=event.timings.queue_seconds,
            time_to_first_token_seconds=event.timings.time_to_first_token_seconds,
            total_seconds=event.timings.total_seconds,
        ),
        stop_string=event.stop_string,
    )


def started_from_message(message: pb.GenerationStarted) -> values.Started:
    """The first event."""
    return values.Started(
        message.request_id,
        message.model,
        message.num_prompt_tokens,
        message.model_fingerprint,
        message.max_tokens,
        message.prompt_sha256,
        message.seed,
    )


def delta_from_message(message: pb.GenerationDelta) -> values.Delta:
    """Tokens and text."""
    return values.Delta(
        message.text,
        tuple(message.token_ids),
        logprobs_from_messages(message.logprobs),
        logprobs_from_messages(message.prompt_logprobs),
    )


def completed_from_message(message: pb.GenerationCompleted) -> values.Completed:
    """The last event; ProtocolError when its reason is not known."""
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
            message.speculation.num_wasted_tokens,
            tuple(message.speculation.num_drafts_per_position),
            tuple(message.speculation.num_accepted_per_position),
            message.speculation.num_looked_up_tokens,
            message.speculation.num_accepted_looked_up_tokens,
        ),
        timings=values.RequestTimings(
            message.timings.queue_seconds,
            message.timings.time_to_first_token_seconds,
            message.timings.total_seconds,
        ),
        stop_string=message.stop_string,
    )
