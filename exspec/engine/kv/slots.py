"""The default layout: one slot per sequence, column = position, every row its own write cursor.

Rollback is a smaller number and KV is never moved, so there is no state here beyond the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from exspec.engine.kv.layout import MAX_BLOCK_TOKENS, PlacedRow, Placement, RowSpan
from exspec.engine.kv.spread import allocate
from exspec.engine.kv.store import KvShape

_CALL_COST = 8192
"""Query-column pairs of padding that are still cheaper than one more attention call per layer."""


class SlotsLayout:
    """Rows at column = position. `place` and `release` change nothing."""

    def __init__(self, shape: KvShape) -> None:
        self.store = allocate(shape)

    @staticmethod
    def num_columns(capacity: int) -> int:
        """Columns a slot needs to hold `capacity` tokens."""
        return capacity

    def place(self, rows: Sequence[RowSpan]) -> Placement:
        """Group rows of like size; nothing is moved."""
        groups = tuple(tuple(PlacedRow(span, 0) for span in group) for group in group_by_size(rows))
        return Placement(groups, 0, 0)

    def relocate(self, source: int, target: int, num_tokens: int) -> None:
        """See `KvLayout`."""
        self.store.copy_slot(source, target, slice(0, num_tokens))

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def group_by_size(rows: Sequence[RowSpan]) -> list[list[RowSpan]]:
    """Split rows into groups whose padding (queries to the most, columns to the longest) is small.

    A prefill chunk stands alone. Other rows, in order of size, join the last group if the padding
    costs less than a call of their own.
    """
    groups: list[list[RowSpan]] = []
    num_queries = num_columns = 0
    for row in sorted(rows, key=lambda row: (row.num_tokens, row.end, row.slot)):
        own = row.num_tokens * row.end
        if groups and row.num_tokens <= MAX_BLOCK_TOKENS:
            size = len(groups[-1])
            columns = max(num_columns, row.end)
            together = (size + 1) * row.num_tokens * columns
            if together <= size * num_queries * num_columns + own + _CALL_COST:
                groups[-1].append(row)
                num_queries, num_columns = row.num_tokens, columns
                continue
        groups.append([row])
        num_queries, num_columns = row.num_tokens, row.end
    return groups
