"""Sums of rounds: what counts, what does not, and where the time goes."""

from __future__ import annotations

from coordinator.accounting import Accounting
from exspec.core.cluster import Totals
from exspec.core.ids import BatchId, SequenceId, WorkerId
from exspec.core.rounds import (
    DraftReply,
    EntryKey,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)

TARGET = WorkerId("t")


class Desk:
    def __init__(self) -> None:
        self.now = 5.0
        self.accounting = Accounting(lambda: self.now)

    def draft(self, **timings) -> None:
        self.accounting.note_draft(DraftReply(BatchId(1), (), PassTimings(**timings)))

    def verify(self, *rows: tuple[int, int], committed: int, is_prefill=False, **timings) -> None:
        """Rows as (drafts, accepted)."""
        keys = [EntryKey(SequenceId(str(i)), 0, 1) for i in range(len(rows))]
        entries = tuple(
            VerifyEntry(key, 0, (1,), (9,) * drafts, is_prefill)
            for key, (drafts, _accepted) in zip(keys, rows, strict=True)
        )
        results = tuple(
            VerifyResult(key, EntryStatus.OK, 1, accepted, None if is_prefill else 5)
            for key, (_drafts, accepted) in zip(keys, rows, strict=True)
        )
        reply = VerifyReply(BatchId(2), results, PassTimings(**timings))
        self.accounting.note_verify(TARGET, VerifyBatch(BatchId(2), entries), reply, committed)


def test_a_round_runs_from_its_first_order_to_its_commit():
    desk = Desk()
    desk.accounting.note_order(TARGET)
    desk.now = 6
    desk.draft(forward_seconds=0.25, align_seconds=0.5, total_seconds=1, num_moved_rows=1)
    desk.accounting.note_order(TARGET)
    desk.now = 9
    desk.verify((3, 1), (2, 2), committed=5, forward_seconds=1.5, total_seconds=2, num_moved_rows=2)
    assert desk.accounting.totals == Totals(
        num_generated_tokens=5,
        num_rounds=1,
        num_row_rounds=2,
        num_draft_tokens=5,
        num_accepted_tokens=3,
        round_seconds=4.0,
        draft_seconds=0.25,
        verify_seconds=1.5,
        align_seconds=0.5,
        num_moved_rows=3,
        worker_overhead_seconds=0.75,
    )


def test_rounds_that_only_prefill_are_not_counted():
    desk = Desk()
    desk.accounting.note_order(TARGET)
    desk.verify((0, 0), committed=0, is_prefill=True, forward_seconds=1)
    assert desk.accounting.totals == Totals()


def test_the_round_of_a_lost_target_is_not_counted():
    desk = Desk()
    desk.accounting.note_order(TARGET)
    desk.now = 50
    desk.accounting.note_lost(TARGET)
    desk.accounting.note_order(TARGET)
    desk.now = 51
    desk.verify((0, 0), committed=1)
    assert desk.accounting.totals.round_seconds == 1


def test_requests_and_failures():
    desk = Desk()
    desk.accounting.note_request(7)
    desk.accounting.note_request(2)
    desk.accounting.note_failure()
    desk.accounting.note_draft_failure()
    assert desk.accounting.totals == Totals(
        num_requests=2, num_prompt_tokens=9, num_failed_requests=1, num_draft_failures=1
    )
