"""Which models can be served exactly, judged from the configuration alone, before weights load.

A rejected draft token must leave no trace. A cache of keys and values per position can forget it; a
window that has slid on, or a recurrent state, cannot. What a configuration does not show is caught
by `exspec.engine.probe` and `exspec.engine.self_test`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig

from exspec.core.errors import UnsupportedModelError

_RECURRENT_FIELDS = (
    "mamba_d_state",
    "mamba_d_conv",
    "ssm_state_size",
    "state_size",
    "conv_kernel",
    "conv_L_cache",
    "linear_conv_kernel_dim",
    "lru_width",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "rescale_every",
)
"""Fields that only configurations of recurrent, convolutional or hybrid models have."""

_LENGTH_FIELDS = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
)
"""Names families have for how many positions there are."""

_DEFAULT_MAX_LENGTH = 2048


def check_config(config: PretrainedConfig) -> None:
    """Refuse a model whose cache cannot be rolled back or whose rows depend on one another.

    Raises:
        UnsupportedModelError: naming the model type and the reason.
    """
    text = config.get_text_config()
    reason = next(_reasons(config), None) or next(_reasons(text), None)
    if reason:
        raise UnsupportedModelError(
            f"models of type {config.model_type!r} cannot be served: {reason}"
        )


def max_length_of(config: PretrainedConfig) -> int:
    """The most positions the model is made for.

    Raises:
        UnsupportedModelError: if there are none.
    """
    text = config.get_text_config()
    named = {name: getattr(text, name, None) for name in _LENGTH_FIELDS}
    lengths = {name: value for name, value in named.items() if isinstance(value, int)}
    for name, value in lengths.items():
        if value < 1:
            raise UnsupportedModelError(
                f"models of type {config.model_type!r} with {name} = {value} cannot be served"
            )
    length = min(lengths.values(), default=_DEFAULT_MAX_LENGTH)
    for rope in _rope_parameters(text):
        if rope.get("rope_type") == "longrope":
            # Beyond this length all positions of a sequence are rotated differently, earlier ones
            # too, so cached keys would not be those of a fresh run.
            length = min(length, int(rope.get("original_max_position_embeddings") or length))
    return int(length)


def _reasons(config: PretrainedConfig) -> Iterator[str]:
    """Everything that speaks against the model."""
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder"
    if getattr(config, "add_cross_attention", False):
        yield "it has cross-attention"
    recurrent = [name for name in _RECURRENT_FIELDS if getattr(config, name, None) is not None]
    if recurrent:
        yield f"it keeps a recurrent state, which cannot be rolled back ({recurrent[0]})"
    yield from _layer_reasons(config)
    if any(rope.get("rope_type") == "dynamic" for rope in _rope_parameters(config)):
        yield "its rotary embedding changes with the sequence length (rope type dynamic)"
    if getattr(config, "alibi", False):
        yield "it uses ALiBi position biases"


def _layer_reasons(config: PretrainedConfig) -> Iterator[str]:
    """Layers that do not attend to every earlier position."""
    layer_types = getattr(config, "layer_types", None)
    other = sorted(set(layer_types or ()) - {"full_attention"})
    if other:
        yield f"it has {', '.join(other)} layers, which cannot be rolled back"
    window = getattr(config, "sliding_window", None)
    # Layer types only count in a family that knows them; elsewhere they are an idle extra field.
    knows_types = layer_types and hasattr(type(config), "layer_types")
    if not knows_types and window and getattr(config, "use_sliding_window", True):
        yield f"its attention slides over a window of {window} tokens, which cannot be rolled back"
    if getattr(config, "attention_chunk_size", None):
        yield "its attention is chunked, which cannot be rolled back"


def _rope_parameters(config: PretrainedConfig) -> Iterator[Mapping[str, Any]]:
    """The rotary settings; one, or one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in rope:
        yield rope
    else:
        yield from (value for value in rope.values() if isinstance(value, Mapping))
