"""The preallocated KV tensors of one worker: writing entries, viewing them, moving them.

Addresses here are (slot, column); what a column means is the layout's business. No tokens, no
positions, no transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class KvShape:
    """Dimensions of the KV memory. `num_columns` is per slot; key and value widths may differ.

    `layer_devices` says where each layer is when they are not all on `device`, the first's.
    """

    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    num_slots: int
    num_columns: int
    dtype: torch.dtype
    device: torch.device
    layer_devices: tuple[torch.device, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnMove:
    """Move `num_columns` entries of a slot from `source_column` on to `target_column` on."""

    slot: int
    source_column: int
    target_column: int
    num_columns: int


class KvStore:
    """Owns K and V of all layers, `[num_slots, kv_heads, num_columns, dim]` each.

    `write`, `move` and `clear` change them in place; `view` returns views. The memory is zeroed at
    construction: masked columns must hold finite numbers, since 0 x NaN is NaN. Whoever writes
    what is not finite clears it.
    """

    def __init__(self, shape: KvShape) -> None:
        self.shape = shape
        lead = (shape.num_layers, shape.num_slots, shape.num_kv_heads, shape.num_columns)
        options = {"dtype": shape.dtype, "device": shape.device}
        self._keys = torch.zeros((*lead, shape.key_dim), **options)
        self._values = torch.zeros((*lead, shape.value_dim), **options)

    @property
    def bytes(self) -> int:
        """Size of the allocation."""
        return self._keys.nbytes + self._values.nbytes

    @property
    def bytes_per_column(self) -> int:
        """Size of one token's K and V over all layers."""
        shape = self.shape
        per_head = (shape.key_dim + shape.value_dim) * self._keys.element_size()
        return shape.num_layers * shape.num_kv_heads * per_head

    def addresses(self, slots: np.ndarray, columns: np.ndarray) -> torch.Tensor:
        """Flat addresses of entries (slots[n], columns[n]) of every head: `[kv_heads * N]`."""
        shape = self.shape
        heads = np.arange(shape.num_kv_heads, dtype=np.int64)[:, None]
        flat = (slots[None, :] * shape.num_kv_heads + heads) * shape.num_columns + columns[None, :]
        return torch.from_numpy(flat.reshape(-1)).to(shape.device)

    def write(
        self, layer_index: int, addresses: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Overwrite the entries at `addresses` with keys and values `[kv_heads, N, dim]`."""
        for memory, new in ((self._keys, keys), (self._values, values)):
            dim = memory.shape[-1]
            memory[layer_index].view(-1, dim).index_copy_(0, addresses, new.reshape(-1, dim))

    def seems_finite(self, addresses: torch.Tensor) -> torch.Tensor:
        """Whether all entries at `addresses` are finite in every layer: a bool on the device.

        One sum each over K and V, far cheaper than looking at every number. True is certain; False
        may be an overflow of the sum, and `finite_tokens` knows.
        """
        sums = [entries.sum(dtype=self._sum_dtype) for entries in self._entries(addresses)]
        return (sums[0] + sums[1]).isfinite()

    def finite_tokens(self, addresses: torch.Tensor) -> torch.Tensor:
        """For each of the N tokens at `addresses` `[kv_heads * N]`, if its entries are finite."""
        per_token = [
            entries.isfinite().all(dim=-1).all(dim=0).view(self.shape.num_kv_heads, -1).all(dim=0)
            for entries in self._entries(addresses)
        ]
        return per_token[0] & per_token[1]

    def clear(self, slot: int, columns: slice) -> None:
        """Zero columns of a slot in every layer."""
        self._keys[:, slot, :, columns] = 0
        self._values[:, slot, :, columns] = 0

    def copy_slot(self, source: int, target: int, columns: slice) -> None:
        """Copy columns of a slot to the same columns of another, in every layer."""
        for memory in (self._keys, self._values):
            memory[:, target, :, columns] = memory[:, source, :, columns]

    def view(
        self, layer_index: int, slots: slice | torch.Tensor, columns: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[len(slots), kv_heads, len(columns), dim]`: views when `slots` is a slice."""
        keys = self._keys[layer_index][:, :, columns]
        values = self._values[layer_index][:, :, columns]
        if isinstance(slots, slice):
            return keys[slots], values[slots]
        return keys.index_select(0, slots), values.index_select(0, slots)

    @property
    def _sum_dtype(self) -> torch.dtype:
        """Wide enough for a sum of entries not to overflow in practice."""
        return torch.promote_types(self.shape.dtype, torch.float32)

    def _entries(self, addresses: torch.Tensor) -> list[torch.Tensor]:
        """K and V at `addresses` in all layers, `[num_layers, kv_heads * N, dim]`."""
        num_layers = self.shape.num_layers
        return [
            memory.view(num_layers, -1, memory.shape[-1]).index_select(1, addresses)
            for memory in (self._keys, self._values)
        ]

    def move(self, moves: list[ColumnMove]) -> int:
        """Carry out all moves at once, as if each slot were copied aside first. Returns bytes.

        One gather and one scatter per K and per V and layer; addresses are computed once. The
        moves must concern different slots.
        """
        if not moves:
            return 0
        slots = np.repeat([m.slot for m in moves], [m.num_columns for m in moves])
        steps = np.concatenate([np.arange(m.num_columns) for m in moves])
        counts = [m.num_columns for m in moves]
        sources = self.addresses(slots, steps + np.repeat([m.source_column for m in moves], counts))
        targets = self.addresses(slots, steps + np.repeat([m.target_column for m in moves], counts))
        for memory in (self._keys, self._values):
            for layer in memory:
                flat = layer.view(-1, layer.shape[-1])
                flat.index_copy_(0, targets, flat.index_select(0, sources))
        return len(steps) * self.bytes_per_column
