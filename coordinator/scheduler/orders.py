"""How chosen rows are fed: order keys, prefill chunks, draft counts, the alignment plan.

Pure arithmetic on rows that changes none of them; which rows are chosen is the policy's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.rows import Row, Worker
from coordinator.scheduler.speculation import (
    SpeculationRule,
    is_near,
    num_drafts_from,
    num_useful_drafts,
)
from exspec.core.acceptance import speculation_cap
from exspec.core.alignment import AlignmentPlan, RowShape, plan_alignment
from exspec.core.rounds import EntryKey


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """A verify batch: `orders[i]` is for `rows[i]`, `alignment` for `decoding_rows`."""

    rows: tuple[Row, ...]
    orders: tuple[VerifyOrder, ...]
    alignment: AlignmentPlan | None

    @property
    def decoding_rows(self) -> tuple[Row, ...]:
        """The rows whose order is no prefill chunk, in the same sequence."""
        return decoding_rows(self.rows, self.orders)


def draft_order(row: Row, worker: Worker, rule: SpeculationRule) -> DraftOrder:
    """Send what the draft worker lacks (its own prefill whole), at least the last token."""
    return DraftOrder(
        key=EntryKey(row.sequence_id, row.draft_epoch, row.round_index + 1),
        start=min(row.draft_kv_length, row.length - 1),
        end=row.length,
        num_draft_tokens=num_drafts_from(worker, row, num_useful_drafts(row, rule)),
    )


def plan_verify(
    chosen: Sequence[Row], rule: SpeculationRule, max_prefill_tokens: int
) -> VerifyPlan:
    """Feed every chosen row; rows in prefill share the budget, first come first served.

    A prefilling row for which nothing is left sits this round out.
    """
    budget = max_prefill_tokens
    rows: list[Row] = []
    orders: list[VerifyOrder] = []
    for row in chosen:
        num_fed = row.num_lacking
        if num_fed > 1 and not is_near(row, num_useful_drafts(row, rule)):
            num_fed = min(num_fed, budget)
            budget -= num_fed
        if num_fed:
            rows.append(row)
            orders.append(_verify_order(row, num_fed))
    shapes = [shape_of(row) for row in decoding_rows(rows, orders)]
    alignment = plan_alignment(shapes) if shapes else None
    return VerifyPlan(tuple(rows), tuple(orders), alignment)


def decoding_rows(rows: Sequence[Row], orders: Sequence[VerifyOrder]) -> tuple[Row, ...]:
    """The rows of a batch that are no prefill chunk."""
    return tuple(row for row, order in zip(rows, orders, strict=True) if not order.is_prefill)


def shape_of(row: Row) -> RowShape:
    """The row as a rectangular cache at its target would hold it."""
    return RowShape(row.left_pad, row.target_kv_length)


def _verify_order(row: Row, num_fed: int) -> VerifyOrder:
    end = row.target_kv_length + num_fed
    is_prefill = end < row.length
    num_drafts = 0
    if row.num_drafted and not is_prefill:
        num_drafts = speculation_cap(row.num_drafted, row.max_length - row.length)
    key = EntryKey(row.sequence_id, row.target_epoch, row.round_index + 1)
    return VerifyOrder(key, row.target_kv_length, end, num_drafts, is_prefill)
