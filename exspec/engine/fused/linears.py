"""Linear layers of a draft model on a CPU: weights in eight bits, in bfloat16, or as they are.

The target decides every token, so a draft's numbers may be rough: what is lost is acceptance.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum

import torch
from torch.nn.functional import linear

from exspec.engine.packing import can_pack


class Precision(Enum):
    """In what a fused body keeps its weights. FULL: in the model's own dtype."""

    INT8 = "int8"
    BFLOAT16 = "bfloat16"
    FULL = "full"


Linear = Callable[[torch.Tensor], torch.Tensor]
"""`[N, in_features]` to `[N, out_features]`, in the dtype it is given."""

_ROWS_HINT = 8
_MANY_ROWS = 12
"""Rows from which bfloat16 on matrix units is faster than bytes, though twice as much is read."""
_TINY = torch.finfo(torch.float32).tiny


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision, *, takes_many: bool
) -> Linear:
    """A product with `weight` `[out_features, in_features]`, laid out once.

    `takes_many`: prompts pass through it, so that INT8 may keep the weight in bfloat16 as well.

    Raises:
        AttributeError, RuntimeError: this torch or processor has no such product.
    """
    if precision is Precision.INT8:
        narrow = _Int8Linear(weight, bias)
        if not takes_many or not has_matrix_units():
            return narrow
        return _LinearByRows(narrow, _PackedLinear(weight.to(torch.bfloat16), bias))
    if precision is Precision.BFLOAT16:
        return _PackedLinear(weight.to(torch.bfloat16), bias)
    if can_pack(weight):
        return _PackedLinear(weight, bias)
    return lambda rows: linear(rows, weight, bias)


def has_fast_int8() -> bool:
    """Whether the processor multiplies bytes without overflow between (AVX-512 VNNI)."""
    return _processor_has("avx512_vnni")


def has_matrix_units() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX)."""
    return _processor_has("amx_bf16")


def _processor_has(capability: str) -> bool:
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # of later versions of torch
    return bool(capabilities.get(capability))


class _LinearByRows:
    """One product for few rows, another for many."""

    def __init__(self, few: Linear, many: Linear) -> None:
        self._few = few
        self._many = many

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._few(rows) if len(rows) < _MANY_ROWS else self._many(rows)


class _PackedLinear:
    """A weight laid out for oneDNN in its own dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._dtype = weight.dtype
        self._bias = None if bias is None else bias.to(weight.dtype)
        weight = weight.contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)  # noqa: SLF001

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            rows.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        return product.to(rows.dtype)


class _Int8Linear:
    """Eight bits with a scale per output for the weight, and per row for what it is fed.

    A scale over all rows, torch's own dynamic quantisation, would let one token with a few huge
    activations (the first of a sequence has them) take the precision of all others; so each row is
    brought to [-1, 1] before. Sums are of integers: a row's result depends on that row alone.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        weight = weight.to(torch.float32)
        scales = weight.abs().amax(dim=1).clamp_min(_TINY).div(127).to(torch.float64)
        zeros = torch.zeros_like(scales, dtype=torch.int64)
        with warnings.catch_warnings():
            # Torch will drop its quantised tensors some day; then full weights are used.
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)
        self._bias = bias
        # Without VNNI two products are added in 16 bits, which only seven-bit inputs fit into.
        self._largest, self._zero = (127, 128) if has_fast_int8() else (63, 64)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.to(torch.float32)
        largest = torch.linalg.vector_norm(wide, float("inf"), -1, keepdim=True).clamp_min_(_TINY)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            wide / largest, 1 / self._largest, self._zero, self._packed
        ).mul_(largest)
        if self._bias is not None:
            product.add_(self._bias)
        return product.to(rows.dtype)
