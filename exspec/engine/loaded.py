"""A model in memory together with what is known of it. Loading is `exspec.engine.loading`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from exspec.core.errors import UnsupportedModelError
from exspec.core.models import ModelFacts, TokenizerAssets
from exspec.engine.fused.reading import FusedModel
from exspec.engine.kv.hf_adapter import AttentionShape
from exspec.engine.kv.store import KvShape
from exspec.engine.ranks import Ranks


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, what is known of it, and its tokenizer as data.

    `draft_vocabulary` holds the token ids worth drafting over, if the model came with a list.
    On a CPU in float32 the model's linear layers are packed (`exspec.engine.packing`). `ranks` are
    the processes the model is spread over, None if it is whole; `attention` is this rank's share.
    `fused` runs in place of the modules of a draft model, if it can.
    """

    model: PreTrainedModel
    facts: ModelFacts
    tokenizer: TokenizerAssets
    attention: AttentionShape
    draft_vocabulary: tuple[int, ...] = ()
    ranks: Ranks | None = None
    fused: FusedModel | None = None


def kv_shape_of(
    model: PreTrainedModel, attention: AttentionShape, num_slots: int, num_columns: int
) -> KvShape:
    """KV memory for this model, each layer's on the layer's device."""
    if attention.num_heads % attention.num_kv_heads:
        raise UnsupportedModelError("query heads are not a multiple of KV heads")
    devices = attention.devices
    is_spread = len(set(devices)) > 1
    return KvShape(
        num_layers=attention.num_layers,
        num_kv_heads=attention.num_kv_heads,
        key_dim=attention.key_dim,
        value_dim=attention.value_dim,
        num_slots=num_slots,
        num_columns=num_columns,
        dtype=model.dtype,
        device=devices[0] if is_spread else model.device,
        layer_devices=devices if is_spread else (),
    )


def num_embeddings_of(model: PreTrainedModel) -> int:
    """How many token ids the model can be fed."""
    weight = getattr(model.get_input_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise UnsupportedModelError(f"{type(model).__name__} has no table of token embeddings")
    return weight.shape[0]
