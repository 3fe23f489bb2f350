"""Messages with a request's parameters, to our values and back. Nowhere else.

What is not served is refused here, by the name of its field.
"""

from __future__ import annotations

import math

from exspec.core.errors import InvalidRequestError
from exspec.core.params import DEFAULT_MAX_TOKENS, SamplingParams, SpeculationParams
from exspec.v1 import generation_pb2 as pb


def sampling_to_message(sampling: SamplingParams) -> pb.SamplingParams:
    """Sampling parameters as they travel, all of them stated."""
    return pb.SamplingParams(
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
    )


def sampling_from_message(message: pb.SamplingParams) -> SamplingParams:
    """Sampling parameters; InvalidRequestError for what is out of bounds or not served."""
    _require_greedy(message)
    has_max_tokens = message.HasField("max_tokens")
    return SamplingParams(
        max_tokens=message.max_tokens if has_max_tokens else DEFAULT_MAX_TOKENS,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def speculation_to_message(speculation: SpeculationParams) -> pb.SpeculationParams:
    """Speculation parameters as they travel."""
    return pb.SpeculationParams(num_speculative_tokens=speculation.num_speculative_tokens)


def speculation_from_message(message: pb.SpeculationParams) -> SpeculationParams:
    """Speculation parameters; InvalidRequestError for what is out of bounds."""
    if not message.HasField("num_speculative_tokens"):
        return SpeculationParams()
    return SpeculationParams(message.num_speculative_tokens)


def _require_greedy(message: pb.SamplingParams) -> None:
    served = {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    for field, value in served.items():
        if not message.HasField(field):  # pyright: ignore[reportArgumentType]
            continue
        given = getattr(message, field)
        if math.isnan(given) or given != value:
            raise InvalidRequestError(
                f"{field} must be {value:g} or absent: only greedy decoding is served, "
                f"got {given:g}",
                field=field,
            )
