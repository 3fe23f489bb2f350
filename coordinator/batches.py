"""From the scheduler's commands to batches: the ledger's tokens at the places an order names.

No decision is taken here; taking staged drafts out of the ledger is the only thing changed.
"""

from __future__ import annotations

from coordinator.ledger import Ledger
from coordinator.scheduler.commands import Draft, Verify
from exspec.core.rounds import DraftBatch, DraftEntry, VerifyBatch, VerifyEntry


def draft_batch(command: Draft, ledger: Ledger) -> DraftBatch:
    """What a draft worker is sent."""
    entries = tuple(
        DraftEntry(
            order.key,
            order.start,
            ledger.tokens(order.key.sequence_id, order.start, order.end),
            order.num_draft_tokens,
        )
        for order in command.orders
    )
    return DraftBatch(command.batch_id, entries)


def verify_batch(command: Verify, ledger: Ledger) -> VerifyBatch:
    """What a target worker is sent; the drafts staged for it are used up."""
    entries = tuple(
        VerifyEntry(
            order.key,
            order.start,
            ledger.tokens(order.key.sequence_id, order.start, order.end),
            ledger.take_draft(order.key.sequence_id, order.num_draft_tokens),
            order.is_prefill,
        )
        for order in command.orders
    )
    return VerifyBatch(command.batch_id, entries)
