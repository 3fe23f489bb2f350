"""Whether a model computes with our KV memory what it computes on its own, tried once per load.

Two rows of different length, a rewind and a block, against one pass with transformers' own cache
and attention. What a model does behind our back (another way to find positions, keys changed after
the cache) shows in its logits, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from exspec.core.errors import UnsupportedModelError
from exspec.engine.kv.hf_adapter import (
    AttentionShape,
    PassCache,
    attending,
    cache_keyword,
    native_attention,
    native_cache,
    our_attention,
)
from exspec.engine.kv.layout import RowSpan
from exspec.engine.kv.plan import plan_pass
from exspec.engine.kv.slots import SlotsLayout
from exspec.engine.loaded import kv_shape_of, num_embeddings_of
from exspec.engine.probe import refusing_failures
from exspec.engine.rows import RowInput, pack

_LENGTHS = (14, 7)
"""Tokens of the two rows in the end, or what the model has positions for."""

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.2}
"""Largest difference of a logit, as a share of the largest logit."""


Forward = Callable[..., torch.Tensor]
"""Runs flat tokens with a cache of ours: called with the places wanted `[M]` and, by keyword,
`input_ids` and `position_ids` `[1, N]` and `cache`; logits `[M, n]`."""


@torch.inference_mode()
def check_computation(model: PreTrainedModel, attention: AttentionShape, max_length: int) -> None:
    """Refuse a model whose logits with our cache are not its own.

    Raises:
        UnsupportedModelError: for that, and for logits that are not finite at all.
    """
    rows = sample_rows(model, max_length)
    with refusing_failures(model):
        ours, starts = logits_of_two_passes(run_modules(model), model, attention, rows)
        own = [_own_logits(model, row)[start:] for row, start in zip(rows, starts, strict=True)]
    _compare(type(model).__name__, ours, torch.cat(own))


def sample_rows(model: PreTrainedModel, max_length: int) -> list[tuple[int, ...]]:
    """Rows of different lengths, up to `max_length`, of ids from all over the vocabulary."""
    return [_tokens(min(length, max_length), model) for length in _LENGTHS]


def _tokens(length: int, model: PreTrainedModel) -> tuple[int, ...]:
    num_ids = num_embeddings_of(model)
    return tuple((1 + 7919 * (i + length)) % num_ids for i in range(length))


def run_modules(model: PreTrainedModel) -> Forward:
    """The model's own modules."""

    def run(wanted: torch.Tensor, **inputs: Any) -> torch.Tensor:  # noqa: ANN401
        inputs[cache_keyword(model)] = inputs.pop("cache")
        return model(**inputs, use_cache=True).logits[0, wanted]

    return run


def logits_of_two_passes(
    forward: Forward,
    model: PreTrainedModel,
    attention: AttentionShape,
    rows: Sequence[tuple[int, ...]],
) -> tuple[torch.Tensor, list[int]]:
    """Logits `[M, n]` of the second of two passes, and where its rows start.

    The first pass ends each row with a token that the second one takes back.
    """
    layout = SlotsLayout(kv_shape_of(model, attention, len(rows), max(map(len, rows))))
    starts = [max(0, len(row) - 4 + slot) for slot, row in enumerate(rows)]
    first = [
        RowInput(slot, 0, (*row[:start], row[0]), 1)
        for slot, (row, start) in enumerate(zip(rows, starts, strict=True))
    ]
    second = [
        RowInput(slot, start, row[start:], len(row) - start)
        for slot, (row, start) in enumerate(zip(rows, starts, strict=True))
    ]
    with our_attention(model):
        _run(forward, layout, first, attention)
        return _run(forward, layout, second, attention), starts


def _run(
    forward: Forward,
    layout: SlotsLayout,
    rows: Sequence[RowInput],
    attention: AttentionShape,
) -> torch.Tensor:
    """One pass as the model runner does it; logits `[M, n]` in the rows' order."""
    spans = [RowSpan(i, row.slot, row.start, len(row.tokens)) for i, row in enumerate(rows)]
    num_query_groups = attention.num_heads // attention.num_kv_heads
    plan = plan_pass(layout.place(spans), layout.store, num_query_groups)
    ids, positions, wanted = (
        torch.from_numpy(values).to(layout.store.shape.device) for values in pack(rows, plan.order)
    )
    cache = PassCache(layout.store, plan)
    with attending(cache):
        return forward(wanted, input_ids=ids[None], position_ids=positions[None], cache=cache)


def _own_logits(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits `[len(tokens), vocab_size]` of one pass without anything of ours."""
    ids = torch.tensor([list(tokens)], device=model.device)
    positions = torch.arange(len(tokens), device=model.device)[None]
    arguments = {cache_keyword(model): native_cache(model), "use_cache": True}
    with native_attention(model):
        return model(input_ids=ids, position_ids=positions, **arguments).logits[0]


def _compare(name: str, ours: torch.Tensor, own: torch.Tensor) -> None:
    """Row by row where the model's own numbers are finite.

    In half precision a mixture of experts may rightly take another way for a token or two.
    """
    is_finite = own.isfinite().all(dim=-1)
    if not is_finite.any():
        raise UnsupportedModelError(f"{name}: the model's logits are not finite")
    ours, own = ours[is_finite], own[is_finite]
    scale = own.abs().amax().clamp_min(torch.finfo(own.dtype).tiny)
    differs = ~((ours - own).abs().amax(dim=-1) <= TOLERANCES.get(own.dtype, 0.2) * scale)
    num_allowed = 0 if own.dtype in (torch.float32, torch.float64) else len(own) // 3
    if int(differs.sum()) > num_allowed:
        raise UnsupportedModelError(
            f"{name} computes differently with our cache than with its own, so it cannot be "
            "served exactly"
        )
