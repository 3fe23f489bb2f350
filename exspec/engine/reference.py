"""The judge: plain greedy decoding of one sequence with transformers' own cache and attention.

Deliberately shares nothing with our KV code, so that it can find its faults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from exspec.core.errors import InvalidRequestError
from exspec.engine.kv.hf_adapter import cache_keyword, native_attention, native_cache
from exspec.engine.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class TopTwo:
    """The two best tokens at a position, and by how much the first one's logit is larger."""

    first_id: int
    second_id: int
    margin: float


@torch.inference_mode()
def generate_plain(
    loaded: LoadedModel,
    prompt_tokens: Sequence[int],
    max_tokens: int,
    stop_token_ids: Collection[int],
) -> tuple[int, ...]:
    """Up to `max_tokens` greedy tokens after the prompt, cut right after the first stop token."""
    if not prompt_tokens:
        raise InvalidRequestError("a prompt needs at least one token", field="prompt_tokens")
    model = loaded.model
    arguments = {cache_keyword(model): native_cache(model), "use_cache": True}
    tokens: list[int] = []
    fed = list(prompt_tokens)
    with native_attention(model):
        while len(tokens) < max_tokens and not (tokens and tokens[-1] in stop_token_ids):
            start = len(prompt_tokens) + len(tokens) - len(fed)
            logits = _logits(model, fed, start, arguments)
            tokens.append(int(logits[-1].argmax()))
            fed = tokens[-1:]
    return tuple(tokens)


@torch.inference_mode()
def top2_margin(loaded: LoadedModel, tokens: Sequence[int], position: int) -> TopTwo:
    """How clear the choice of the token at index `position` is, given `tokens[:position]`.

    Needs a model loaded with dtype="float64". (Parts a model always computes in float32 stay so.)
    """
    model = loaded.model
    if model.dtype != torch.float64:
        raise InvalidRequestError(
            f"margins are computed in float64, the model is in {loaded.facts.dtype}", field="dtype"
        )
    if not 1 <= position <= len(tokens):
        raise InvalidRequestError(
            f"position {position} is not between 1 and {len(tokens)}", field="position"
        )
    with native_attention(model):
        logits = _logits(model, tokens[:position], 0, {"use_cache": False})[-1]
    top = logits.topk(2)
    first, second = top.indices.tolist()
    return TopTwo(first, second, float(top.values[0] - top.values[1]))


def _logits(
    model: PreTrainedModel, tokens: Sequence[int], start: int, arguments: dict[str, object]
) -> torch.Tensor:
    """Logits `[len(tokens), vocab_size]` of tokens fed at positions `start`, …"""
    ids = torch.tensor([list(tokens)], device=model.device)
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    return model(input_ids=ids, position_ids=positions, **arguments).logits[0]
