"""Sums of what happened and where the time of rounds went; read by status and benchmarks."""

from __future__ import annotations

from dataclasses import replace

from exspec.core.cluster import Totals
from exspec.core.ids import WorkerId
from exspec.core.rounds import DraftReply, EntryStatus, PassTimings, VerifyBatch, VerifyReply
from exspec.runtime.clock import Clock


class Accounting:
    """Owns the totals, and when the round each target is in began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals = Totals()
        self._round_started: dict[WorkerId, float] = {}
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

    def note_order(self, target_id: WorkerId) -> None:
        """A draft or verify order for a row of this target goes out: its round has begun."""
        self._round_started.setdefault(target_id, self._clock())

    def note_draft(self, reply: DraftReply) -> None:
        """A draft worker answered."""
        self._pending_drafts.append(reply.timings)

    def note_draft_failure(self) -> None:
        """A draft worker brought nothing in time."""
        self._totals = replace(self._totals, num_draft_failures=self._totals.num_draft_failures + 1)

    def note_lost(self, target_id: WorkerId) -> None:
        """The round of a lost target is not counted."""
        self._round_started.pop(target_id, None)

    def note_verify(
        self, target_id: WorkerId, batch: VerifyBatch, reply: VerifyReply, num_committed: int
    ) -> None:
        """A target's round was committed."""
        started = self._round_started.pop(target_id, None)
        drafts, self._pending_drafts = self._pending_drafts, []
        decided = [
            (entry, result)
            for entry, result in zip(batch.entries, reply.results, strict=True)
            if result.status is EntryStatus.OK and not entry.is_prefill
        ]
        if not decided or started is None:
            return
        totals = self._totals
        passes = (*drafts, reply.timings)
        self._totals = replace(
            totals,
            num_generated_tokens=totals.num_generated_tokens + num_committed,
            num_rounds=totals.num_rounds + 1,
            num_row_rounds=totals.num_row_rounds + len(decided),
            num_draft_tokens=totals.num_draft_tokens
            + sum(len(entry.draft_tokens) for entry, _ in decided),
            num_accepted_tokens=totals.num_accepted_tokens
            + sum(result.num_accepted for _, result in decided),
            round_seconds=totals.round_seconds + self._clock() - started,
            draft_seconds=totals.draft_seconds + sum(t.forward_seconds for t in drafts),
            verify_seconds=totals.verify_seconds + reply.timings.forward_seconds,
            align_seconds=totals.align_seconds + sum(t.align_seconds for t in passes),
            num_moved_rows=totals.num_moved_rows + sum(t.num_moved_rows for t in passes),
            worker_overhead_seconds=totals.worker_overhead_seconds
            + sum(t.total_seconds - t.forward_seconds - t.align_seconds for t in passes),
        )
