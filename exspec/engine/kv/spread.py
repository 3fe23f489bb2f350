"""KV memory of a model whose layers live on several devices: one store per device behind one face.

Addresses name slot, head and column, so they are the same on every device; only the tensors that
hold them must be where the layer is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from exspec.engine.kv.store import ColumnMove, KvShape, KvStore


class SpreadKvStore:
    """Owns a `KvStore` per device, in the order in which the layers meet them.

    What it answers for all layers is on the device of the first; see `KvStore` for the rest.
    """

    def __init__(self, shape: KvShape) -> None:
        self.shape = shape
        self._stores: dict[torch.device, KvStore] = {}
        self._places: list[tuple[KvStore, int]] = []
        for device in dict.fromkeys(shape.layer_devices):
            num_layers = shape.layer_devices.count(device)
            own = replace(shape, num_layers=num_layers, device=device, layer_devices=())
            self._stores[device] = KvStore(own)
        next_index = dict.fromkeys(self._stores, 0)
        for device in shape.layer_devices:
            self._places.append((self._stores[device], next_index[device]))
            next_index[device] += 1

    @property
    def bytes(self) -> int:
        """Size of the allocation, on all devices."""
        return sum(store.bytes for store in self._stores.values())

    def addresses(self, slots: np.ndarray, columns: np.ndarray) -> torch.Tensor:
        """Flat addresses `[kv_heads * N]` on the first device."""
        return self._places[0][0].addresses(slots, columns)

    def write(
        self, layer_index: int, addresses: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Overwrite entries of a layer; everything is on the layer's device."""
        store, own_index = self._places[layer_index]
        store.write(own_index, addresses, keys, values)

    def seems_finite(self, addresses: torch.Tensor) -> torch.Tensor:
        """Whether all entries at `addresses` are finite in every layer: a bool."""
        return self._everywhere(KvStore.seems_finite, addresses)

    def finite_tokens(self, addresses: torch.Tensor) -> torch.Tensor:
        """For each of the N tokens at `addresses` `[kv_heads * N]`, if its entries are finite."""
        return self._everywhere(KvStore.finite_tokens, addresses)

    def clear(self, slot: int, columns: slice) -> None:
        """Zero columns of a slot in every layer."""
        for store in self._stores.values():
            store.clear(slot, columns)

    def copy_slot(self, source: int, target: int, columns: slice) -> None:
        """Copy columns of a slot to another in every layer."""
        for store in self._stores.values():
            store.copy_slot(source, target, columns)

    def view(
        self, layer_index: int, slots: slice | torch.Tensor, columns: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[len(slots), kv_heads, len(columns), dim]` on the layer's device."""
        store, own_index = self._places[layer_index]
        return store.view(own_index, slots, columns)

    def move(self, moves: list[ColumnMove]) -> int:
        """Carry out all moves in every layer. Returns bytes."""
        return sum(store.move(moves) for store in self._stores.values())

    def _everywhere(
        self, ask: Callable[[KvStore, torch.Tensor], torch.Tensor], addresses: torch.Tensor
    ) -> torch.Tensor:
        answers = [
            ask(store, addresses.to(device)).to(self.shape.device)
            for device, store in self._stores.items()
        ]
        return torch.stack(answers).all(dim=0)


KvMemory = KvStore | SpreadKvStore
"""What the layouts and passes work on."""


def allocate(shape: KvShape) -> KvMemory:
    """The memory, where its layers are."""
    return SpreadKvStore(shape) if shape.layer_devices else KvStore(shape)
