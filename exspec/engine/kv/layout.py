"""The interface of a KV layout: where the tokens of a row stand in the KV memory.

A layout is bookkeeping over KV memory. It sees slots, lengths and counts; never token values,
sequence ids or tensors of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from exspec.engine.kv.spread import KvMemory

MAX_BLOCK_TOKENS = 64
"""Rows of a pass with more tokens than this are prefill chunks, computed each on its own."""


class KvLayoutName(Enum):
    """The layouts a worker can be started with."""

    SLOTS = "slots"
    PADDED = "padded"


@dataclass(frozen=True, slots=True)
class RowSpan:
    """What a layout knows of a row of a pass: `num_tokens` new tokens at positions `start`, …

    `row_index` is the row's place in the caller's list.
    """

    row_index: int
    slot: int
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """The row's length after the pass."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row and the column of its position 0: position p stands in column `origin` + p."""

    span: RowSpan
    origin: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows in groups that may share one attention call, and what making room for them moved."""

    groups: tuple[tuple[PlacedRow, ...], ...]
    num_moved_rows: int
    num_moved_bytes: int


class KvLayout(Protocol):
    """One way to lay rows out in KV memory. The instance owns the store.

    A row is rolled back by naming a smaller `start` in the next pass; nothing else is needed.
    """

    store: KvMemory

    def place(self, rows: Sequence[RowSpan]) -> Placement:
        """Find every row its columns for this pass.

        May move KV entries below `start` (padded) and changes the layout's own bookkeeping
        accordingly; entries from `start` on are stale from here on. Slots not named keep all
        they hold. The caller has checked that slots differ and rows fit.
        """
        ...

    def relocate(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` of a slot into another, which then holds them."""
        ...

    def release(self, slot: int) -> None:
        """Forget a slot's bookkeeping, so that another sequence may start in it. Moves no KV."""
        ...
