"""How chosen rows are fed: order keys, prefill chunks, draft counts, the alignment plan.

Pure arithmetic on rows that changes none of them; which rows are chosen is the policy's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.rows import Row, Worker
from exspec.core.acceptance import speculation_cap
from exspec.core.alignment import AlignmentPlan, RowShape, plan_alignment
from exspec.core.rounds import EntryKey


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """A verify batch: `orders[i]` is for `rows[i]`, `alignment` for `decoding_rows`.

    `left_out`: rows in prefill for which no budget was left.
    """

    rows: tuple[Row, ...]
    orders: tuple[VerifyOrder, ...]
    alignment: AlignmentPlan | None
    left_out: tuple[Row, ...] = ()

    @property
    def decoding_rows(self) -> tuple[Row, ...]:
        """The rows whose order is no prefill chunk, in the same sequence."""
        return decoding_rows(self.rows, self.orders)


def draft_order(row: Row) -> DraftOrder:
    """Send what the draft worker lacks (its own prefill whole), at least the last token."""
    return DraftOrder(
        EntryKey(row.sequence_id, row.draft_epoch, row.round_index + 1),
        min(row.draft_kv_length, row.length - 1),
        row.length,
        row.num_planned,
    )


def feed_orders(worker: Worker, budget: int) -> list[tuple[Row, DraftOrder]]:
    """Log for a draft worker's hungry rows, all but the last token, first come first served."""
    orders: list[tuple[Row, DraftOrder]] = []
    for row in worker.hungry.values():
        start = row.draft_kv_length
        end = min(row.length - 1, start + budget)
        if row.draft_batch is None and start < end:
            key = EntryKey(row.sequence_id, row.draft_epoch, row.round_index + 1)
            orders.append((row, DraftOrder(key, start, end, 0)))
            budget -= end - start
    return orders


def plan_verify(chosen: Sequence[Row], prefill_budget: int) -> VerifyPlan:
    """Feed the rows of a group; those in prefill share the budget, first in the queue first."""
    fed = _tokens_to_feed(chosen, prefill_budget)
    rows = tuple(row for row in chosen if fed.get(row, 1))
    orders = tuple(
        [_verify_order(row, fed[row] if fed and row in fed else row.num_lacking) for row in rows]
    )
    shapes = [shape_of(row) for row in decoding_rows(rows, orders)]
    alignment = plan_alignment(shapes) if shapes else None
    left_out = tuple(row for row in chosen if not fed.get(row, 1)) if fed else ()
    return VerifyPlan(rows, orders, alignment, left_out)


def decoding_rows(rows: Sequence[Row], orders: Sequence[VerifyOrder]) -> tuple[Row, ...]:
    """The rows of a batch that are no prefill chunk."""
    return tuple([row for row, order in zip(rows, orders, strict=True) if not order.is_prefill])


def shape_of(row: Row) -> RowShape:
    """The row as a rectangular cache at its target would hold it."""
    return RowShape(row.left_pad, row.target_kv_length)


def in_prefill(row: Row) -> bool:
    """Whether its target lacks more of the log than a round's own tokens."""
    return row.num_lacking > 1 + row.num_planned


def _tokens_to_feed(chosen: Sequence[Row], budget: int) -> dict[Row, int]:
    """For the rows in prefill: how much of the log this pass takes; 0: it sits this one out."""
    fed: dict[Row, int] = {}
    for row in sorted(filter(in_prefill, chosen), key=lambda row: row.place):
        fed[row] = min(row.num_lacking, budget)
        budget -= fed[row]
    return fed


def _verify_order(row: Row, num_fed: int) -> VerifyOrder:
    end = row.target_kv_length + num_fed
    is_prefill = end < row.length
    num_drafts = 0
    if row.num_drafted and not is_prefill:
        num_drafts = speculation_cap(row.num_drafted, row.max_length - row.length)
    key = EntryKey(row.sequence_id, row.target_epoch, row.round_index + 1)
    return VerifyOrder(key, row.target_kv_length, end, num_drafts, is_prefill)
