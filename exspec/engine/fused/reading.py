"""The parts of a fused body out of transformers' modules: which families, and what they must have.

Whatever is not exactly as expected is refused, since a part that is overlooked is computed wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from exspec.engine.fused.body import FusedBody, FusedLayer, HeadShape, RmsNorm, Rotation
from exspec.engine.fused.linears import Linear, Precision, make_linear
from exspec.engine.kv.hf_adapter import AttentionShape
from exspec.engine.packing import PackedLinear

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)

_OWN_MODULES = frozenset({"embed_tokens", "layers", "norm", "rotary_emb"})
_ROPES_OF_LENGTHS = frozenset({"dynamic", "longrope"})
"""Kinds of rotation that are not the same at a position whatever the others are: no table fits."""
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
_NORMS = frozenset({"input_layernorm", "post_attention_layernorm"})
_HEAD_NORMS = frozenset({"self_attn.q_norm", "self_attn.k_norm"})
_LAYER_MODULES = (
    _NORMS
    | {"self_attn", "mlp", "mlp.act_fn"}
    | {f"self_attn.{name}" for name in _LINEARS[0]}
    | {f"mlp.{name}" for name in _LINEARS[1]}
)


class NotFusableError(Exception):
    """The model is not what a fused body computes; says why."""


@dataclass(frozen=True, slots=True)
class FusedModel:
    """A body and the means to make a head for it."""

    body: FusedBody
    head: nn.Linear | PackedLinear
    precision: Precision

    def rows_of_head(self, token_ids: torch.Tensor | None) -> Linear:
        """The head's rows for these tokens `[n]`; None: all of them."""
        weight, bias = self.head.weight.detach(), self.head.bias
        if token_ids is not None:
            weight = weight[token_ids]
            bias = None if bias is None else bias[token_ids]
        return make_linear(weight, bias, self.precision, takes_many=False)


def read_fused(
    model: PreTrainedModel, attention: AttentionShape, precision: Precision
) -> FusedModel:
    """Lay the model's weights out anew; the model itself is left as it is.

    Raises:
        NotFusableError: not one of `FAMILIES`, or not quite.
        AttributeError, RuntimeError: see `make_linear`.
    """
    if type(model) not in FAMILIES:
        raise NotFusableError(f"{type(model).__name__} is none of the families it is written for")
    base: Any = model.base_model
    _check_names("the model", [name for name, _ in base.named_children()], _OWN_MODULES)
    if getattr(base.rotary_emb, "rope_type", None) in _ROPES_OF_LENGTHS:
        raise NotFusableError("how it rotates depends on the length of the text")
    embeddings = base.embed_tokens.weight.detach()
    rotation = Rotation(base.rotary_emb, embeddings[:1])
    if rotation.dim != attention.key_dim or attention.value_dim != attention.key_dim:
        raise NotFusableError("its heads are rotated in part")
    layers = tuple(_layer_of(layer, attention, precision) for layer in base.layers)
    body = FusedBody(embeddings, rotation, layers, _norm_of(base.norm))
    return FusedModel(body, _as_linear(model.get_output_embeddings(), "the head"), precision)


def _layer_of(layer: Any, attention: AttentionShape, precision: Precision) -> FusedLayer:  # noqa: ANN401
    """One layer's parts."""
    names = [name for name, _ in layer.named_modules() if name and "act_fn." not in name]
    has_head_norm = "self_attn.q_norm" in names
    _check_names("a layer", names, _LAYER_MODULES | (_HEAD_NORMS if has_head_norm else set()))
    heads, mlp = layer.self_attn, layer.mlp
    shape = HeadShape(
        attention.num_heads, attention.num_kv_heads, attention.key_dim, float(heads.scaling)
    )
    return FusedLayer(
        shape=shape,
        input_norm=_norm_of(layer.input_layernorm),
        qkv=_joined((heads.q_proj, heads.k_proj, heads.v_proj), precision),
        head_norm=_head_norm_of(heads, shape) if has_head_norm else None,
        output=_joined((heads.o_proj,), precision),
        mlp_norm=_norm_of(layer.post_attention_layernorm),
        gate_up=_joined((mlp.gate_proj, mlp.up_proj), precision),
        activation=mlp.act_fn,
        down=_joined((mlp.down_proj,), precision),
    )


def _check_names(of: str, names: Sequence[str], expected: frozenset[str]) -> None:
    """All of them, and no other."""
    different = sorted(set(names) ^ expected)
    if different:
        verb = "has" if different[0] in names else "lacks"
        raise NotFusableError(f"{of} {verb} {different[0]}")


def _as_linear(module: object, name: str) -> nn.Linear | PackedLinear:
    """A plain linear layer; one that somebody put something on top of is another class."""
    if type(module) not in (nn.Linear, PackedLinear):
        raise NotFusableError(f"{name} is a {type(module).__name__}")
    assert isinstance(module, nn.Linear | PackedLinear)
    return module


def _joined(modules: Sequence[object], precision: Precision) -> Linear:
    """Several products of the same rows as one."""
    linears = [_as_linear(module, "a projection") for module in modules]
    weight = torch.cat([one.weight.detach() for one in linears])
    bias = None
    if any(one.bias is not None for one in linears):
        parts = [
            weight.new_zeros(one.out_features) if one.bias is None else one.bias.detach()
            for one in linears
        ]
        bias = torch.cat(parts)
    return make_linear(weight, bias, precision, takes_many=True)


def _norm_of(module: Any) -> RmsNorm:  # noqa: ANN401
    """A norm of the whole width."""
    try:
        return RmsNorm(module.weight.detach(), float(module.variance_epsilon))
    except AttributeError as error:
        raise NotFusableError(f"{type(module).__name__} is no norm of the kind") from error


def _head_norm_of(heads: Any, shape: HeadShape) -> RmsNorm:  # noqa: ANN401
    """The norms of query and key heads as one over both, `[query and key heads, dim]`."""
    queries, keys = _norm_of(heads.q_norm), _norm_of(heads.k_norm)
    if queries.epsilon != keys.epsilon or queries.weight.shape != (shape.dim,):
        raise NotFusableError("queries and keys are normed in different ways")
    rows = (
        queries.weight.expand(shape.num_heads, -1),
        keys.weight.expand(shape.num_kv_heads, -1),
    )
    return RmsNorm(torch.cat(rows), queries.epsilon)
