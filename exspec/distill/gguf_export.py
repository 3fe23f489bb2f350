"""A student of a GGUF target as a GGUF file: the target's metadata with fewer layers.

For the Llama family only, whose tensors transformers can read back without loss. What the student
left as it was (embedding, maybe head) is taken over byte for byte; matrices become Q8_0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel

from exspec.distill.plan import EmbeddingType
from exspec.engine.gguf_reading import open_gguf

_TABLES = ("token_embd.weight", "output.weight")
_KINDS = {
    EmbeddingType.TARGET: Kind.Q8_0,
    EmbeddingType.Q8_0: Kind.Q8_0,
    EmbeddingType.Q4_1: Kind.Q4_1,
    EmbeddingType.F16: Kind.F16,
}
_QUANTIZATION_VERSION = 2
_ROUNDING = 2**-7
"""A target read in half precision has its table rounded; the bytes are the better ones."""
_DROPPED = ("split.", "GGUF.", "general.architecture", "general.size_label", "quantize.")
"""Starts of metadata names that are not the student's, or written by gguf's writer itself."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as it lies in the file: raw bytes or numbers `[rows, …]` of a kind."""

    name: str
    values: np.ndarray[Any, Any]
    kind: Kind


def can_be_gguf(student: PreTrainedModel, target_file: Path) -> bool:
    """Whether the student can be written as a file like the target's."""
    is_llama = type(student) in (LlamaForCausalLM, MistralForCausalLM)
    return is_llama and open_gguf(target_file).fields["general.architecture"].contents() == "llama"


def write_gguf(
    student: PreTrainedModel, target_file: Path, path: Path, embedding: EmbeddingType
) -> None:
    """Write the student to `path`. The target's file is read, not changed."""
    target = open_gguf(target_file)
    writer = gguf.GGUFWriter(path, "llama")
    try:
        _add_metadata(writer, target, student)
        for tensor in _tensors(student, target, embedding):
            writer.add_tensor(tensor.name, tensor.values, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def rounded_table(table: torch.Tensor, embedding: EmbeddingType) -> torch.Tensor:
    """An embedding or head `[n, width]` of the target as `write_gguf` will store it."""
    if embedding is EmbeddingType.TARGET:
        return table
    stored = _quantized("", table.detach().float().cpu().numpy(), _KINDS[embedding])
    return torch.from_numpy(gguf.dequantize(stored.values, stored.kind)).to(table)


def _add_metadata(
    writer: gguf.GGUFWriter, target: gguf.GGUFReader, student: PreTrainedModel
) -> None:
    """The target's entries in their order, the student's values in place of some."""
    changed = _changed(student, target)
    for name, field in target.fields.items():
        if name.startswith(_DROPPED):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = changed.pop(name, field.contents())
        if name == gguf.Keys.General.ALIGNMENT:
            writer.data_alignment = int(value)
        writer.add_key_value(name, value, kind, inner)
    if gguf.Keys.General.QUANTIZATION_VERSION not in target.fields:
        writer.add_quantization_version(_QUANTIZATION_VERSION)


def _changed(student: PreTrainedModel, target: gguf.GGUFReader) -> dict[str, Any]:
    """Entries that the student's configuration decides. Those a file lacks stay out."""
    config: Any = student.config
    named = target.fields.get("general.name")
    return {
        "general.name": f"exspec draft for {named.contents() if named else 'its target'}",
        "general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0),
        "llama.block_count": config.num_hidden_layers,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
    }


def _tensors(
    student: PreTrainedModel, target: gguf.GGUFReader, embedding: EmbeddingType
) -> Iterator[_Tensor]:
    """Every tensor of the student under its GGUF name, and what the target has beside layers."""
    theirs = {tensor.name: tensor for tensor in target.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, student.config.num_hidden_layers)
    written = set[str]()
    is_tied = bool(student.config.tie_word_embeddings)
    for ours, weight in student.state_dict().items():
        stem, _, suffix = ours.rpartition(".")
        base = names.get_name(stem)
        assert base is not None, f"{ours} has no place in a GGUF file"
        name = f"{base}.{suffix}"
        if is_tied and name == "output.weight":
            continue
        written.add(name)
        values = weight.detach().float().cpu().numpy()
        if name in _TABLES:
            yield _table(name, values, theirs.get(name), embedding)
        else:
            yield _quantized(name, _permuted(name, values, student.config), Kind.Q8_0)
    for name, tensor in theirs.items():  # such as scaled rotary frequencies
        if name not in written and not name.startswith("blk.") and name not in _TABLES:
            yield _Tensor(name, np.asarray(tensor.data), tensor.tensor_type)


def _table(
    name: str,
    values: np.ndarray[Any, Any],
    theirs: gguf.ReaderTensor | None,
    embedding: EmbeddingType,
) -> _Tensor:
    """An embedding or head: the target's bytes, if it is the target's and nothing else is asked."""
    if embedding is EmbeddingType.TARGET and theirs is not None:
        plain = gguf.dequantize(np.asarray(theirs.data), theirs.tensor_type)
        if plain.shape == values.shape and np.allclose(plain, values, _ROUNDING, 0.0):
            return _Tensor(name, np.asarray(theirs.data), theirs.tensor_type)
    return _quantized(name, values, _KINDS[embedding])


def _quantized(name: str, values: np.ndarray[Any, Any], kind: Kind) -> _Tensor:
    """Vectors stay float32; a row that is no whole number of blocks is kept in half precision."""
    if values.ndim == 1:
        return _Tensor(name, values, Kind.F32)
    block_size, _ = gguf.GGML_QUANT_SIZES[kind]
    fitting = kind if values.shape[-1] % block_size == 0 else Kind.F16
    raw = values.astype(np.float16) if fitting is Kind.F16 else gguf.quantize(values, fitting)
    return _Tensor(name, raw, fitting)


def _permuted(
    name: str,
    values: np.ndarray[Any, Any],
    config: Any,  # noqa: ANN401
) -> np.ndarray[Any, Any]:
    """Rows of q and k as llama.cpp rotates them: pairs side by side, not half a head apart."""
    if ".attn_q." in name:
        num_heads = config.num_attention_heads
    elif ".attn_k." in name:
        num_heads = config.num_key_value_heads
    else:
        return values
    half = values.shape[0] // num_heads // 2
    split = values.reshape(num_heads, 2, half, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
