"""Sums of rounds: what counts, what does not, and where the time goes."""

from __future__ import annotations

from coordinator.accounting import Accounting
from exspec.core.cluster import Totals
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    EntryKey,
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)


def _key(name: str) -> EntryKey:
    return EntryKey(SequenceId(name), 0, 1)


class Desk:
    """An accounting and a clock that only moves by hand. Sequences are named by their place."""

    def __init__(self) -> None:
        self.now = 5.0
        self.accounting = Accounting(lambda: self.now)

    @property
    def totals(self) -> Totals:
        return self.accounting.totals

    def order_drafts(self, *names: str) -> None:
        entries = tuple(DraftEntry(_key(name), 0, (1,), 3) for name in names)
        self.accounting.note_orders(DraftBatch(BatchId(1), entries))

    def order_verify(self, *names: str) -> None:
        entries = tuple(VerifyEntry(_key(name), 0, (1,)) for name in names)
        self.accounting.note_orders(VerifyBatch(BatchId(2), entries))

    def forget(self, *names: str) -> None:
        self.accounting.forget(SequenceId(name) for name in names)

    def draft(self, **timings) -> None:
        self.accounting.note_draft(DraftReply(BatchId(1), (), PassTimings(**timings)))

    def verify(
        self,
        *rows: tuple[int, int],
        committed: int,
        names: str = "abcd",
        is_prefill=False,
        is_grouped=False,
        status=EntryStatus.OK,
        looked_up: tuple[int, ...] = (0, 0, 0, 0),
        **timings,
    ) -> None:
        """Rows as (drafts, accepted); so many of each row's last drafts were looked up."""
        keys = [_key(name) for name in names[: len(rows)]]
        entries = tuple(
            VerifyEntry(key, 0, (1,), (9,) * drafts, is_prefill, num_looked_up=num_looked_up)
            for key, (drafts, _), num_looked_up in zip(keys, rows, looked_up, strict=False)
        )
        results = tuple(
            VerifyResult(key, status, 1, accepted, None if is_prefill else 5)
            for key, (_drafts, accepted) in zip(keys, rows, strict=True)
        )
        reply = VerifyReply(BatchId(2), results, PassTimings(**timings))
        batch = VerifyBatch(BatchId(2), entries)
        self.accounting.note_verify(batch, reply, committed, is_grouped=is_grouped)


def test_a_round_runs_from_its_first_order_to_its_commit():
    desk = Desk()
    desk.order_drafts("a", "b")
    desk.now = 6
    desk.draft(forward_seconds=0.25, align_seconds=0.5, total_seconds=1, num_moved_rows=1)
    desk.order_verify("a", "b")
    desk.now = 9
    desk.verify((3, 1), (2, 2), committed=5, forward_seconds=1.5, total_seconds=2, num_moved_rows=2)
    assert desk.totals == Totals(
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


def test_the_round_of_a_batch_began_with_the_first_of_its_rows():
    desk = Desk()
    desk.order_drafts("b")
    desk.now = 7
    desk.order_verify("a", "b")
    desk.now = 8
    desk.verify((0, 0), (0, 0), committed=2)
    assert desk.totals.round_seconds == 3


def test_rounds_of_different_rows_at_one_time_are_counted_each():
    desk = Desk()
    desk.order_drafts("a")
    desk.now = 6
    desk.order_drafts("b")
    desk.now = 7
    desk.verify((0, 0), names="a", committed=1)
    desk.now = 9
    desk.verify((0, 0), names="b", committed=1)
    assert (desk.totals.num_rounds, desk.totals.round_seconds) == (2, 2.0 + 3.0)


def test_the_next_round_begins_anew():
    desk = Desk()
    for now in (10, 20):
        desk.now = now
        desk.order_verify("a")
        desk.now += 1
        desk.verify((0, 0), committed=1)
    assert desk.totals.round_seconds == 2


def test_rounds_that_only_prefill_are_not_counted():
    desk = Desk()
    desk.order_verify("a")
    desk.verify((0, 0), committed=0, is_prefill=True, is_grouped=True, forward_seconds=1)
    desk.verify((0, 0), committed=0, status=EntryStatus.FAILED, forward_seconds=1)
    assert desk.totals == Totals()


def test_the_round_of_a_lost_target_is_not_counted():
    desk = Desk()
    desk.order_verify("a", "b")
    desk.now = 50
    desk.forget("a", "unknown")
    desk.order_verify("a")
    desk.now = 51
    desk.verify((0, 0), names="a", committed=1)
    assert desk.totals.round_seconds == 1


def test_grouped_rounds_and_plain_rows():
    desk = Desk()
    desk.verify((0, 0), (2, 1), (0, 0), committed=4, is_grouped=True)
    desk.verify((1, 1), (1, 0), committed=3)
    assert (desk.totals.num_rounds, desk.totals.num_grouped_rounds) == (2, 1)
    assert desk.totals.num_plain_row_rounds == 2
    assert desk.totals.grouping_rate == 0.5
    assert desk.totals.mean_draft_tokens == 4 / 5


def test_drafts_of_the_model_and_looked_up_ones_are_counted_apart():
    desk = Desk()
    desk.verify((5, 4), (3, 3), (4, 1), (2, 2), committed=14, looked_up=(2, 3, 1, 0))
    totals = desk.totals
    assert (totals.num_draft_tokens, totals.num_accepted_tokens) == (14, 10)
    assert (totals.num_looked_up_tokens, totals.num_accepted_looked_up_tokens) == (6, 1 + 3)
    assert (totals.num_model_tokens, totals.num_accepted_model_tokens) == (8, 6)


def test_requests_and_failures():
    desk = Desk()
    desk.accounting.note_request(7)
    desk.accounting.note_request(2)
    desk.accounting.note_failure()
    desk.accounting.note_draft_failure()
    desk.accounting.note_overdue()
    desk.accounting.note_overdue()
    assert desk.totals == Totals(
        num_requests=2,
        num_prompt_tokens=9,
        num_failed_requests=1,
        num_draft_failures=1,
        num_overdue_drafts=2,
    )
