"""From placed rows to the index tensors of one pass: packing order, write addresses, masks.

Built once per pass and shared by all layers. Knows lengths and columns; no model, no token values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from exspec.engine.kv.layout import PlacedRow, Placement
from exspec.engine.kv.spread import KvMemory
from exspec.engine.kv.store import KvShape

_BRIDGE_COST = 1024
"""Query-column pairs of slots without a row that are cheaper than one more call per layer."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows computed by one attention call: R rows, each padded to T queries inside the call.

    The group's tokens are `first_token` … of the pass. `gather` maps [R * T] queries to them (a
    short row repeats its last token, a slot that has no part repeats any), `scatter` picks the real
    ones back; both None when every row has T tokens. `mask` is additive, `[R, 1, T, columns]`, or
    None when all columns are visible.
    """

    first_token: int
    num_tokens: int
    num_rows: int
    num_queries: int
    slots: slice | torch.Tensor
    columns: slice
    gather: torch.Tensor | None
    scatter: torch.Tensor | None
    mask: torch.Tensor | None

    def on(self, device: torch.device) -> AttentionGroup:
        """The same with its tensors on a device."""
        return replace(
            self,
            slots=self.slots if isinstance(self.slots, slice) else self.slots.to(device),
            gather=None if self.gather is None else self.gather.to(device),
            scatter=None if self.scatter is None else self.scatter.to(device),
            mask=None if self.mask is None else self.mask.to(device),
        )


@dataclass(frozen=True, slots=True)
class PassPlan:
    """How the rows of a pass are packed into one flat list of N tokens, and where they go.

    `order[i]` is the caller's index of the i-th packed row; `write_addresses` is
    `[kv_heads * N]` for `KvStore.write`.
    """

    order: tuple[int, ...]
    write_addresses: torch.Tensor
    groups: tuple[AttentionGroup, ...]

    @property
    def num_tokens(self) -> int:
        """N."""
        return sum(group.num_tokens for group in self.groups)

    def on(self, device: torch.device) -> PassPlan:
        """The same with its tensors on a device."""
        groups = tuple(group.on(device) for group in self.groups)
        return PassPlan(self.order, self.write_addresses.to(device), groups)


def plan_pass(placement: Placement, store: KvMemory, num_query_groups: int) -> PassPlan:
    """Pack placed rows. `num_query_groups` is query heads per KV head (they share one mask)."""
    groups = [run for group in placement.groups for run in _runs(group, store.shape.device)]
    rows = [row for group in groups for row in group]
    slots = np.repeat([r.span.slot for r in rows], [r.span.num_tokens for r in rows])
    columns = np.concatenate([_columns_of(row) for row in rows])
    built, first_token = list[AttentionGroup](), 0
    for group in groups:
        built.append(_build_group(group, first_token, store.shape, num_query_groups))
        first_token += built[-1].num_tokens
    order = tuple(row.span.row_index for row in rows)
    return PassPlan(order, store.addresses(slots, columns), tuple(built))


def _columns_of(row: PlacedRow) -> np.ndarray:
    """The columns the row's new tokens are written to."""
    return np.arange(row.origin + row.span.start, row.origin + row.span.end)


def _runs(group: Sequence[PlacedRow], device: torch.device) -> Iterator[list[PlacedRow]]:
    """The group in slot order; on a CPU split where slots are not neighbours.

    Neighbouring slots are read in place. Elsewhere a copy of the KV is needed: on a CPU that costs
    more than another attention call, on an accelerator less. A few slots between two rows that have
    no part in the pass are cheaper to compute for nothing than another call.
    """
    rows = sorted(group, key=lambda row: row.span.slot)
    if device.type != "cpu":
        yield rows
        return
    widest = max(row.origin + row.span.end for row in rows)
    pairs_per_slot = widest * max(row.span.num_tokens for row in rows)
    run = [rows[0]]
    for row in rows[1:]:
        num_between = row.span.slot - run[-1].span.slot - 1
        if num_between * pairs_per_slot > _BRIDGE_COST:
            yield run
            run = []
        run.append(row)
    yield run


def _build_group(
    rows: Sequence[PlacedRow], first_token: int, shape: KvShape, num_query_groups: int
) -> AttentionGroup:
    """Index tensors of one attention call."""
    real_counts = [row.span.num_tokens for row in rows]
    slots = _slots_of(rows, shape.device)
    filled = _with_gaps(rows) if isinstance(slots, slice) else [*rows]
    counts = np.array([0 if row is None else row.span.num_tokens for row in filled])
    num_queries = int(counts.max())
    is_ragged = bool((counts != num_queries).any())
    steps = np.clip(np.arange(num_queries)[None, :], 0, np.maximum(counts - 1, 0)[:, None])
    columns = slice(min(row.origin for row in rows), max(row.origin + row.span.end for row in rows))
    origins = np.array([columns.start if row is None else row.origin for row in filled])
    starts = np.array([0 if row is None else row.span.start for row in filled])
    gather = np.minimum(steps + (np.cumsum(counts) - counts)[:, None], sum(real_counts) - 1)
    real = np.arange(num_queries)[None, :] < counts[:, None]
    return AttentionGroup(
        first_token=first_token,
        num_tokens=sum(real_counts),
        num_rows=len(filled),
        num_queries=num_queries,
        slots=slots,
        columns=columns,
        gather=_to_index(gather, shape.device) if is_ragged else None,
        scatter=_to_index(np.flatnonzero(real), shape.device) if is_ragged else None,
        mask=_additive(
            _mask(origins, steps + (origins + starts)[:, None], columns), shape, num_query_groups
        ),
    )


def _with_gaps(rows: Sequence[PlacedRow]) -> list[PlacedRow | None]:
    """One item per slot from the first row's to the last one's; None where no row is."""
    by_slot = {row.span.slot: row for row in rows}
    return [by_slot.get(slot) for slot in range(rows[0].span.slot, rows[-1].span.slot + 1)]


def _slots_of(rows: Sequence[PlacedRow], device: torch.device) -> slice | torch.Tensor:
    """A slice over rows that are neighbours, or on a CPU nearly so; else their slots' indices."""
    slots = [row.span.slot for row in rows]
    is_dense = slots[-1] - slots[0] + 1 == len(slots)
    if is_dense or device.type == "cpu":
        return slice(slots[0], slots[-1] + 1)
    return torch.tensor(slots, device=device)


def _mask(origins: np.ndarray, ends: np.ndarray, columns: slice) -> np.ndarray:
    """Visible columns `[R, T, columns]`: from the row's origin to the query's own column."""
    column = np.arange(columns.start, columns.stop)[None, None, :]
    return (column >= origins[:, None, None]) & (column <= ends[:, :, None])


def _additive(mask: np.ndarray, shape: KvShape, num_query_groups: int) -> torch.Tensor | None:
    """The mask as numbers to add, repeated for the query heads of one KV head; None if no effect.

    `[R, 1, num_query_groups * T, columns]`
    """
    if mask.all():
        return None
    visible = torch.from_numpy(mask).to(shape.device)
    additive = torch.zeros(visible.shape, dtype=shape.dtype, device=shape.device)
    additive.masked_fill_(~visible, float("-inf"))
    return additive.repeat(1, num_query_groups, 1).unsqueeze(1)


def _to_index(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A flat index tensor."""
    return torch.from_numpy(values.reshape(-1).astype(np.int64)).to(device)
