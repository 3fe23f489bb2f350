"""A tiny quantized GGUF file made in place: what a downloaded one has, without its size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from tests.engine.tiny import SPECIAL_TOKENS

WIDTH, INNER, NUM_LAYERS, NUM_HEADS = 32, 64, 2, 4
"""Rows are whole blocks of 32, as the quantized types want them."""
PRECISE = gguf.GGMLQuantizationType.F32
COARSE = gguf.GGMLQuantizationType.Q8_0


def save_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """A llama of two layers with full heads, a tied vocabulary head and a byte tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    tokens = _add_tokenizer(writer)
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    draw = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)):
        values = draw.normal(0.0, 0.5, shape).astype(np.float32)
        kind = COARSE if len(shape) > 1 else PRECISE
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> list[str]:
    tokens = [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), "ab"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    return tokens


def _shapes(vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the tensors, and their shapes as torch has them."""
    yield "token_embd.weight", (vocab_size, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    for layer in range(NUM_LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (WIDTH,)
        yield f"blk.{layer}.ffn_norm.weight", (WIDTH,)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{part}.weight", (WIDTH, WIDTH)
        yield f"blk.{layer}.ffn_gate.weight", (INNER, WIDTH)
        yield f"blk.{layer}.ffn_up.weight", (INNER, WIDTH)
        yield f"blk.{layer}.ffn_down.weight", (WIDTH, INNER)
