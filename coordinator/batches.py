"""From the scheduler's commands to batches: the ledger's tokens at the places an order names.

No decision is taken here; taking staged drafts out of the ledger is the only thing changed.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.ledger import Ledger
from coordinator.scheduler.commands import Draft, DraftOrder, Verify, VerifyOrder
from exspec.core.choosing import ChoiceRules
from exspec.core.rounds import DraftBatch, DraftEntry, VerifyBatch, VerifyEntry


def draft_batch(command: Draft, ledger: Ledger) -> DraftBatch:
    """What a draft worker is sent."""
    entries = tuple(
        DraftEntry(
            order.key,
            order.start,
            ledger.tokens(order.key.sequence_id, order.start, order.end),
            order.num_draft_tokens,
            _draft_rules(order, ledger),
        )
        for order in command.orders
    )
    return DraftBatch(command.batch_id, entries)


def verify_batch(command: Verify, ledger: Ledger) -> VerifyBatch:
    """What a target worker is sent; the drafts staged for it are used up."""
    entries = tuple(_verify_entry(order, ledger) for order in command.orders)
    return VerifyBatch(command.batch_id, entries)


def _verify_entry(order: VerifyOrder, ledger: Ledger) -> VerifyEntry:
    sequence_id = order.key.sequence_id
    drafts = ledger.take_draft(sequence_id, order.num_draft_tokens)
    return VerifyEntry(
        order.key,
        order.start,
        ledger.tokens(sequence_id, order.start, order.end),
        drafts.tokens,
        order.is_prefill,
        _rules(order, ledger),
        ledger.scored_token(sequence_id, order.end) if order.is_prefill else None,
        drafts.num_looked_up,
    )


def _rules(order: DraftOrder | VerifyOrder, ledger: Ledger) -> ChoiceRules | None:
    """With the first token of a log, and with no other."""
    return ledger.rules(order.key.sequence_id) if order.start == 0 else None


def _draft_rules(order: DraftOrder, ledger: Ledger) -> ChoiceRules | None:
    """Those that decide what is chosen: nobody reads what a draft would report."""
    rules = _rules(order, ledger)
    if rules is None:
        return None
    silent = replace(rules, num_logprobs=None, num_prompt_logprobs=None)
    return None if silent.is_plain else silent
