"""Configurations of students: fewer layers, or a smaller width. No weights here."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

from transformers import PretrainedConfig

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.distill.plan import DistillPlan

_NOT_PER_LAYER = re.compile(r"(_ids?|architectures|_labels?)$")
_LAYER_INDICES = ("mlp_only_layers",)
"""Fields that name layers by index."""
_WIDTH = re.compile(r"(hidden_size|hidden_dim|embed_dim|proj_dim|d_model|n_embd|embedding_size)$")
_INNER = re.compile(r"(intermediate_size|ffn_dim|n_inner|ffn_hidden_size)$")


def shrunk(config: PretrainedConfig, plan: DistillPlan) -> PretrainedConfig:
    """The student's configuration, from the target's.

    Raises:
        InvalidRequestError: if the target has fewer layers than asked for, or its width cannot be
            lowered to the one asked for.
        UnsupportedModelError: if it does not say how many layers it has.
    """
    smaller = copy.deepcopy(config)
    num_layers = layers_of(config)
    _keep_layers(smaller, num_layers, choose_layers(num_layers, plan))
    width = plan.hidden_size
    if width is not None and width != config.get_text_config().hidden_size:
        _narrow(smaller, width)
    return smaller


def layers_of(config: PretrainedConfig) -> int:
    """How many layers a model has."""
    number = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(number, int) or number < 1:
        raise UnsupportedModelError(
            f"models of type {config.model_type!r} do not say how many layers they have"
        )
    return number


def choose_layers(num_layers: int, plan: DistillPlan) -> tuple[int, ...]:
    """Rising indices of the target's layers that the student starts from.

    Raises:
        InvalidRequestError: for layers that the target does not have.
    """
    if plan.num_layers > num_layers:
        raise InvalidRequestError(
            f"a draft of {plan.num_layers} layers cannot be made from a target of {num_layers}",
            field="num_layers",
        )
    if plan.from_layers and plan.from_layers[-1] >= num_layers:
        raise InvalidRequestError(
            f"the target has layers 0 to {num_layers - 1}, and no layer {plan.from_layers[-1]}",
            field="from_layers",
        )
    if plan.from_layers:
        return plan.from_layers
    steps = max(1, plan.num_layers - 1)
    return tuple(round(i * (num_layers - 1) / steps) for i in range(plan.num_layers))


def _keep_layers(config: PretrainedConfig, num_layers: int, chosen: tuple[int, ...]) -> None:
    """Make a configuration of `num_layers` one of the chosen layers, lists per layer included."""
    text = config.get_text_config()
    for name, value in list(vars(text).items()):
        if not isinstance(value, list | tuple) or _NOT_PER_LAYER.search(name):
            continue
        if name in _LAYER_INDICES:
            setattr(text, name, [new for new, old in enumerate(chosen) if old in value])
        elif len(value) == num_layers:
            setattr(text, name, [value[i] for i in chosen])
    dense = getattr(text, "first_k_dense_replace", None)
    if isinstance(dense, int):
        text.first_k_dense_replace = sum(layer < dense for layer in chosen)
    text.num_hidden_layers = len(chosen)


def _narrow(config: PretrainedConfig, width: int) -> None:
    """Lower the width of a configuration: heads keep their size, and there are fewer of them.

    Raises:
        InvalidRequestError: if the width is not a whole number of heads, or not smaller.
    """
    text: Any = config.get_text_config()
    before, num_heads = text.hidden_size, text.num_attention_heads
    step = before // math.gcd(before, num_heads)
    if width > before or width % step:
        raise InvalidRequestError(
            f"a width of {width} cannot be made from the target's {before} with {num_heads} heads: "
            f"it must be a multiple of {step}, at most {before}",
            field="hidden_size",
        )
    num_kv_heads = getattr(text, "num_key_value_heads", None)
    heads_left = num_heads * width // before
    for name, value in list(vars(text).items()):
        if type(value) is not int:
            continue
        if value == before and _WIDTH.search(name):
            setattr(text, name, width)
        elif _INNER.search(name):
            setattr(text, name, _inner(value * width / before))
    text.num_attention_heads = heads_left
    if isinstance(num_kv_heads, int):
        text.num_key_value_heads = _kv_heads(heads_left, num_heads, num_kv_heads)


def _inner(ideal: float) -> int:
    """A width of the feed-forward part, in whole blocks for kernels and quantization."""
    block = 64 if ideal >= 512 else 32 if ideal >= 64 else 8
    return max(block, round(ideal / block) * block)


def _kv_heads(heads_left: int, num_heads: int, num_kv_heads: int) -> int:
    """As many query heads per KV head as before, or the nearest more that divides."""
    if num_kv_heads == num_heads:
        return heads_left
    most = max(1, round(heads_left * num_kv_heads / num_heads))
    return max(n for n in range(1, most + 1) if heads_left % n == 0)
