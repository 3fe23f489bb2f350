"""Configurations of students: fewer layers, or a smaller width. No weights here."""

from __future__ import annotations

import math
import re
from typing import Any

from transformers import PretrainedConfig

from exspec.core.errors import InvalidRequestError

_NOT_PER_LAYER = re.compile(r"(_ids?|architectures|_labels?)$")
_LAYER_INDICES = ("mlp_only_layers",)
"""Fields that name layers by index."""
_WIDTH = re.compile(r"(hidden_size|hidden_dim|embed_dim|proj_dim|d_model|n_embd|embedding_size)$")
_INNER = re.compile(r"(intermediate_size|ffn_dim|n_inner|ffn_hidden_size)$")


def keep_layers(config: PretrainedConfig, num_layers: int, chosen: tuple[int, ...]) -> None:
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


def narrow(config: PretrainedConfig, width: int) -> None:
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
