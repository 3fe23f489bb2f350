"""Messages with a request's parameters, to our values and back. Nowhere else.

What a client left out is absent in the message, and None in our values; what is stated but makes
no sense is refused, by the name of its field.
"""

from __future__ import annotations

from exspec.core.choosing import Grammar
from exspec.core.errors import InvalidRequestError, ProtocolError
from exspec.core.params import DEFAULT_MAX_TOKENS, SamplingParams, SpeculationParams
from exspec.v1 import common_pb2
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_rules import (
    grammar_from_message,
    grammar_to_message,
    values_from_messages,
    values_to_messages,
)


def sampling_to_message(sampling: SamplingParams) -> pb.SamplingParams:
    """Sampling parameters as they travel; what is None is absent.

    Raises:
        ValueError: a number does not fit its place, which only `max_tokens` and ids need not.
    """
    structured = sampling.structured
    return pb.SamplingParams(
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=values_to_messages(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        bad_words=sampling.bad_words,
        bad_words_ids=[common_pb2.TokenSequence(token_ids=i) for i in sampling.bad_words_ids],
        banned_token_ids=sampling.banned_token_ids,
        allowed_token_ids=sampling.allowed_token_ids,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        structured=None if structured is None else grammar_to_message(structured),
    )


def sampling_from_message(message: pb.SamplingParams) -> SamplingParams:
    """Sampling parameters; InvalidRequestError for what is out of bounds."""
    has = message.HasField
    return SamplingParams(
        max_tokens=message.max_tokens if has("max_tokens") else DEFAULT_MAX_TOKENS,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        temperature=message.temperature if has("temperature") else None,
        top_k=message.top_k if has("top_k") else None,
        top_p=message.top_p if has("top_p") else None,
        min_p=message.min_p if has("min_p") else None,
        typical_p=message.typical_p if has("typical_p") else None,
        repetition_penalty=message.repetition_penalty if has("repetition_penalty") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=values_from_messages(message.logit_bias),
        min_tokens=message.min_tokens,
        bad_words=tuple(message.bad_words),
        bad_words_ids=tuple(tuple(word.token_ids) for word in message.bad_words_ids),
        banned_token_ids=tuple(message.banned_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        seed=message.seed if has("seed") else None,
        logprobs=message.logprobs if has("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if has("prompt_logprobs") else None,
        include_stop_str_in_output=message.include_stop_str_in_output,
        structured=_structured(message.structured) if has("structured") else None,
    )


def speculation_to_message(speculation: SpeculationParams) -> pb.SpeculationParams:
    """Speculation parameters as they travel."""
    return pb.SpeculationParams(num_speculative_tokens=speculation.num_speculative_tokens)


def speculation_from_message(message: pb.SpeculationParams) -> SpeculationParams:
    """Speculation parameters; InvalidRequestError for what is out of bounds."""
    if not message.HasField("num_speculative_tokens"):
        return SpeculationParams()
    return SpeculationParams(message.num_speculative_tokens)


def _structured(message: common_pb2.Grammar) -> Grammar:
    try:
        return grammar_from_message(message)
    except ProtocolError as error:
        raise InvalidRequestError(f"structured: {error.message}", field="structured") from error
