"""Drafting: entries in, proposals out, whatever proposes them. Free of torch and the wire.

The drafter keeps what it holds of every sequence across rounds (`core.sessions`): after a round it
keeps the longest common prefix of what it drafted and what was committed, and feeds the rest.
Between batches it may draft ahead, one step at a time (`draft_worker.ahead`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from draft_worker.ahead import AheadDrafts, Drafted
from draft_worker.proposer import ProposalRow, Proposals, Proposer
from exspec.core.ids import SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryStatus,
    PassTimings,
)
from exspec.core.session_rules import SessionRules
from exspec.core.sessions import Feed, Refusal, Repeat, SessionTable
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)


class Drafter:
    """Owns the sessions and the proposer of one draft worker; one thread calls it."""

    def __init__(
        self, proposer: Proposer, clock: Clock, *, orphan_seconds: float, num_ahead: int = 0
    ) -> None:
        """`num_ahead`: how far `draft_ahead` goes. 0 unless the proposer chains (`AheadDrafts`)."""
        self._proposer = proposer
        self._clock = clock
        self._orphan_seconds = orphan_seconds
        self._sessions = SessionTable[DraftResult](proposer.num_slots)
        self._rules = SessionRules(proposer.open_choosing)
        self.ahead = AheadDrafts(num_ahead, proposer.capacity)
        """For reading."""

    @property
    def num_sequences(self) -> int:
        """Sequences held now."""
        return len(self._sessions)

    def draft(self, batch: DraftBatch, arrived: float) -> DraftReply:
        """Serve one batch that arrived at `arrived` on the clock. Never raises for a bad entry."""
        started = self._clock()
        orphans = self._sessions.expired(before=started - self._orphan_seconds)
        self.forget((*batch.released, *orphans))
        results: dict[SequenceId, DraftResult] = {}
        entries: list[DraftEntry] = []
        rows: list[ProposalRow] = []
        for entry in batch.entries:
            answer = self._prepare(entry, started)
            if isinstance(answer, ProposalRow):
                entries.append(entry)
                rows.append(answer)
            else:
                results[entry.key.sequence_id] = answer
        proposals = self._propose(rows)
        for index, (entry, row) in enumerate(zip(entries, rows, strict=True)):
            results[entry.key.sequence_id] = self._conclude(entry, row, proposals, index)
        ordered = tuple(results[entry.key.sequence_id] for entry in batch.entries)
        timings = self._timings(arrived, started, rows, proposals)
        return DraftReply(batch.batch_id, ordered, timings)

    def draft_ahead(self) -> bool:
        """One token more for all rows that have room. Returns whether there is more to do.

        Never raises, and no later entry fails by it: after a failed pass the rows are forgotten,
        and sent again.
        """
        step = self.ahead.next_step()
        if not step:
            return False
        try:
            proposals = self._proposer.propose(list(step.values()))
        except Exception:  # as for a batch
            logger.exception("draft.ahead_failed rows=%d", len(step))
            self.forget(step)
            return False
        self.ahead.advance(list(step), proposals)
        return self.ahead.has_room

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Free the slots of sequences nobody will ask for again; unknown ones are ignored."""
        for sequence_id in sequence_ids:
            self._forget(sequence_id)

    def _prepare(self, entry: DraftEntry, now: float) -> ProposalRow | DraftResult:
        refused = self._refused(entry)
        if refused is not None:
            return refused
        match self._sessions.admit(entry.key, entry.start, entry.tokens, now=now):
            case Refusal(status, kv_length, detail):
                return DraftResult(entry.key, status, kv_length, detail=detail)
            case Repeat(result):
                return result
            case Feed() as feed:
                row = self._row(entry, feed)
                if not entry.num_draft_tokens:
                    self.ahead.drop(entry.key.sequence_id)
                    return row
                row = self.ahead.resume(entry.key.sequence_id, row)
                is_known = not row.num_draft_tokens
                return self._answer(entry, row, (), row.feed.start) if is_known else row

    def _refused(self, entry: DraftEntry) -> DraftResult | None:
        if entry.end > self._proposer.capacity:
            detail = f"{entry.end} tokens, the draft's context is {self._proposer.capacity}"
            return DraftResult(entry.key, EntryStatus.NO_CAPACITY, 0, detail=detail)
        unknown = [token for token in entry.tokens if not 0 <= token < self._proposer.vocab_size]
        if unknown:
            detail = f"token id {unknown[0]} is outside the draft's vocabulary"
            return DraftResult(entry.key, EntryStatus.INVALID, 0, detail=detail)
        return None

    def _row(self, entry: DraftEntry, feed: Feed) -> ProposalRow:
        sequence_id = entry.key.sequence_id
        ready = self._rules.of(entry)
        self._rules.keep(sequence_id, ready)
        # The last proposal is not fed, so K proposals need K - 1 more positions.
        room = self._proposer.capacity - entry.end + 1
        return ProposalRow(
            feed,
            self._sessions.held_tokens(sequence_id),
            min(entry.num_draft_tokens, room),
            None if ready is None else ready.choosing,
            is_greedy=ready is None,
        )

    def _propose(self, rows: list[ProposalRow]) -> Proposals | None:
        if not rows:
            return Proposals((), ())
        try:
            return self._proposer.propose(rows)
        except Exception:  # whatever it was, the rows are forgotten and the worker goes on
            logger.exception("draft.pass_failed rows=%d", len(rows))
            return None

    def _conclude(
        self, entry: DraftEntry, row: ProposalRow, proposals: Proposals | None, index: int
    ) -> DraftResult:
        if proposals is None:
            return self._failed(entry, "the pass failed")
        is_fed = index not in proposals.failed_rows
        if not is_fed and len(row.log) == entry.end:
            return self._failed(entry, "the draft's logits are not finite")
        if not entry.num_draft_tokens:
            return self._fed(entry)
        num_held = len(row.log) + proposals.num_fed[index] if is_fed else row.feed.start
        num_looked_up = proposals.num_looked_up_of(index)
        return self._answer(entry, row, proposals.tokens[index], num_held, num_looked_up)

    def _fed(self, entry: DraftEntry) -> DraftResult:
        result = DraftResult(entry.key, EntryStatus.OK, entry.end)
        self._sessions.record(entry.key, (), result)
        return result

    def _answer(
        self,
        entry: DraftEntry,
        row: ProposalRow,
        new_tokens: tuple[int, ...],
        num_held: int,
        num_looked_up: int = 0,
    ) -> DraftResult:
        """Propose what was known beyond the entry's log, then the new tokens."""
        known = (*row.log, *new_tokens)
        tokens = known[entry.end : entry.end + entry.num_draft_tokens]
        result = DraftResult(
            entry.key, EntryStatus.OK, entry.end, tokens, num_looked_up=num_looked_up
        )
        # Without drafting ahead the last proposal is never held, and so it is with it: the session
        # does not depend on what was done between batches.
        num_recorded = max(0, min(num_held - entry.end, len(tokens) - 1))
        self._sessions.record(entry.key, tokens[:num_recorded], result)
        drafted = Drafted(entry.end, len(tokens), new_tokens, num_held)
        self.ahead.settle(entry.key.sequence_id, drafted)
        return result

    def _failed(self, entry: DraftEntry, detail: str) -> DraftResult:
        self._forget(entry.key.sequence_id)
        return DraftResult(entry.key, EntryStatus.FAILED, 0, detail=detail)

    def _forget(self, sequence_id: SequenceId) -> None:
        self.ahead.drop(sequence_id)
        self._rules.drop(sequence_id)
        slot = self._sessions.forget(sequence_id)
        if slot is not None:
            self._proposer.release(slot)

    def _timings(
        self,
        arrived: float,
        started: float,
        rows: list[ProposalRow],
        proposals: Proposals | None,
    ) -> PassTimings:
        return PassTimings(
            queue_seconds=started - arrived,
            align_seconds=proposals.align_seconds if proposals else 0.0,
            forward_seconds=proposals.forward_seconds if proposals else 0.0,
            total_seconds=self._clock() - started,
            num_rows=len(rows),
            num_tokens=sum(len(row.feed.tokens) for row in rows)
            + (sum(proposals.num_fed) if proposals else 0),
            num_moved_rows=proposals.num_moved_rows if proposals else 0,
        )
