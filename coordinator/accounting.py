"""Sums of what happened and where the time of rounds went; read by status and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.measures import Leaving, Measures
from exspec.core.acceptance import looked_up_among
from exspec.core.cluster import Totals
from exspec.core.ids import SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftReply,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)
from exspec.runtime.clock import Clock


class Accounting:
    """Owns the totals and measures, and when the round each sequence is in began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals = Totals()
        self.measures = Measures()
        """What totals do not tell."""
        self._round_started: dict[SequenceId, float] = {}
        self._pending_drafts: list[PassTimings] = []

    @property
    def totals(self) -> Totals:
        """Sums so far."""
        return self._totals

    def note_request(self, num_prompt_tokens: int) -> None:
        """A request was accepted."""
        totals = self._totals
        self._totals = replace(
            totals,
            num_requests=totals.num_requests + 1,
            num_prompt_tokens=totals.num_prompt_tokens + num_prompt_tokens,
        )

    def note_failure(self) -> None:
        """A request ended with an error."""
        self._totals = replace(
            self._totals, num_failed_requests=self._totals.num_failed_requests + 1
        )

    def note_orders(self, batch: DraftBatch | VerifyBatch) -> None:
        """Orders go out: rounds of their sequences have begun, if they had not before."""
        now = self._clock()
        for entry in batch.entries:
            self._round_started.setdefault(entry.key.sequence_id, now)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Their rounds will not end."""
        for sequence_id in sequence_ids:
            self._round_started.pop(sequence_id, None)

    def note_draft(self, reply: DraftReply) -> None:
        """A draft worker answered."""
        self._pending_drafts.append(reply.timings)

    def note_draft_failure(self) -> None:
        """A draft worker brought nothing in time."""
        self._totals = replace(self._totals, num_draft_failures=self._totals.num_draft_failures + 1)

    def note_overdue(self) -> None:
        """A draft batch is not waited for any longer."""
        self._totals = replace(self._totals, num_overdue_drafts=self._totals.num_overdue_drafts + 1)

    def note_draining(self, num_sequences: int) -> None:
        """A connected worker takes no new rows; it holds that many."""
        self.measures.note_leaving(Leaving.DRAINING, num_sequences)

    def note_lost(self, num_sequences: int) -> None:
        """The connection to a worker ended; it held that many."""
        self.measures.note_leaving(Leaving.LOST, num_sequences)

    def note_verify(
        self, batch: VerifyBatch, reply: VerifyReply, num_committed: int, *, is_grouped: bool
    ) -> None:
        """A target's round was committed."""
        names = [entry.key.sequence_id for entry in batch.entries]
        now = self._clock()
        started = min((self._round_started.pop(name, now) for name in names), default=now)
        drafts, self._pending_drafts = self._pending_drafts, []
        decided = [
            (entry, result)
            for entry, result in zip(batch.entries, reply.results, strict=True)
            if result.status is EntryStatus.OK and not entry.is_prefill
        ]
        if not decided:
            return
        for entry, result in decided:
            self.measures.note_row(len(entry.draft_tokens), result.num_accepted)
        totals = self._totals
        passes = (*drafts, reply.timings)
        num_drafted = [len(entry.draft_tokens) for entry, _ in decided]
        num_looked_up = sum(entry.num_looked_up for entry, _ in decided)
        num_found = sum(num_looked_up_accepted(entry, result) for entry, result in decided)
        self._totals = replace(
            totals,
            num_generated_tokens=totals.num_generated_tokens + num_committed,
            num_rounds=totals.num_rounds + 1,
            num_row_rounds=totals.num_row_rounds + len(decided),
            num_grouped_rounds=totals.num_grouped_rounds + is_grouped,
            num_plain_row_rounds=totals.num_plain_row_rounds + num_drafted.count(0),
            num_draft_tokens=totals.num_draft_tokens + sum(num_drafted),
            num_accepted_tokens=totals.num_accepted_tokens
            + sum(result.num_accepted for _, result in decided),
            num_looked_up_tokens=totals.num_looked_up_tokens + num_looked_up,
            num_accepted_looked_up_tokens=totals.num_accepted_looked_up_tokens + num_found,
            round_seconds=totals.round_seconds + now - started,
            draft_seconds=totals.draft_seconds + sum(t.forward_seconds for t in drafts),
            verify_seconds=totals.verify_seconds + reply.timings.forward_seconds,
            align_seconds=totals.align_seconds + sum(t.align_seconds for t in passes),
            num_moved_rows=totals.num_moved_rows + sum(t.num_moved_rows for t in passes),
            worker_overhead_seconds=totals.worker_overhead_seconds
            + sum(t.total_seconds - t.forward_seconds - t.align_seconds for t in passes),
        )
        self.measures.note_round(self._totals)


def num_looked_up_accepted(entry: VerifyEntry, result: VerifyResult) -> int:
    """How many of the accepted drafts were looked up."""
    return looked_up_among(result.num_accepted, len(entry.draft_tokens), entry.num_looked_up)
