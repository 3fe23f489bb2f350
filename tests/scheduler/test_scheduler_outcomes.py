"""One rule per test: what each status of a draft or a verify leads to."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, spans

from coordinator.scheduler.commands import Draft
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

# Draft outcomes


def second_round(bench, **odd):
    """The row "a" after its first draft came back as `odd` says, and its next verify."""
    bench.arrive("a")
    bench.verified()
    bench.drafted(**odd)
    assert bench.verify_of("a").num_draft_tokens == 0
    bench.verified()


def test_a_draft_worker_that_lacks_tokens_is_sent_them():
    bench = Bench()
    second_round(bench, a=(EntryStatus.LACKS_TOKENS, 3))
    assert spans(bench, Draft) == [("a", 3, 12)]
    assert bench.draft_of("a").key.epoch == 0


@pytest.mark.parametrize("status", [EntryStatus.STALE, EntryStatus.INVALID, EntryStatus.FAILED])
def test_a_draft_worker_that_failed_starts_anew(status):
    bench = Bench()
    second_round(bench, a=(status, 3))
    assert spans(bench, Draft) == [("a", 0, 12)]
    assert bench.draft_of("a").key.epoch == 1


def test_a_draft_worker_without_capacity_is_not_asked_again():
    bench = Bench()
    second_round(bench, a=(EntryStatus.NO_CAPACITY, 0))
    assert spans(bench, Draft) == []
    bench.join("e", Role.DRAFT)
    bench.verified()
    assert bench.last[-1].worker_id == "e"
    assert spans(bench, Draft) == [("a", 0, 13)]


@pytest.mark.parametrize("answers", [True, False])
def test_three_failures_in_a_row_end_drafting(answers):
    bench = Bench()
    bench.arrive("a")
    for failures in (2, 3):
        bench.verified()
        for _ in range(failures):
            if answers:
                bench.drafted(a=(EntryStatus.FAILED, 0))
            else:
                bench.draft_failed()
            assert bench.verify_of("a").num_draft_tokens == 0
            bench.verified()
        if failures == 2:
            bench.drafted()  # starts the count anew
    assert spans(bench, Draft) == []
    assert spans(bench)


def test_a_failed_draft_batch_keeps_what_the_worker_held():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.verified(accepted={"a": 0})
    bench.draft_failed()
    bench.verified()
    assert spans(bench, Draft) == [("a", 11, 13)]


# Verify outcomes


def test_a_target_that_lacks_tokens_is_sent_them():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.verified(a=(EntryStatus.LACKS_TOKENS, 4))
    order = bench.verify_of("a")
    assert (order.start, order.end, order.num_draft_tokens, order.key.epoch) == (4, 11, 0, 0)


@pytest.mark.parametrize("status", [EntryStatus.STALE, EntryStatus.INVALID, EntryStatus.FAILED])
def test_a_target_that_failed_is_sent_the_whole_log(status):
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.verified(a=(status, 4))
    order = bench.verify_of("a")
    assert (order.start, order.end, order.num_draft_tokens, order.key.epoch) == (0, 11, 0, 1)


def test_a_failed_verify_batch_restarts_all_its_rows():
    bench = Bench(targets=())
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verify_failed()
    assert spans(bench) == [("a", 0, 10), ("b", 0, 10)]
    assert [order.key.epoch for order in bench.last[-1].orders] == [1, 1]


def test_failures_are_counted_until_a_token_is_committed():
    bench = Bench()
    bench.arrive("a")
    for count, status in enumerate((EntryStatus.LACKS_TOKENS, EntryStatus.FAILED), start=1):
        bench.verified(a=(status, 0))
        assert bench.scheduler.num_failures("a") == count
    bench.verify_failed()
    assert bench.scheduler.num_failures("a") == 3
    bench.verified()
    assert bench.scheduler.num_failures("a") == 0
    assert bench.scheduler.num_failures("stranger") == 0


def test_a_refusal_may_report_more_than_the_log():
    """The worker served a batch whose reply was lost: it holds drafts that were never committed."""
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted(a=(EntryStatus.STALE, 15))
    bench.verified(a=(EntryStatus.STALE, 15))
    assert spans(bench) == [("a", 0, 11)]


# Overdue drafts


def late_bench(**limits) -> Bench:
    """Row "a" in its second round, its draft overdue: it was verified without."""
    bench = Bench(**limits)
    bench.arrive("a")
    bench.verified()
    bench.overdue()
    return bench


def test_an_overdue_draft_is_not_waited_for():
    bench = late_bench()
    assert spans(bench) == [("a", 10, 11)]
    assert bench.verify_of("a").num_draft_tokens == 0
    assert bench.scheduler.awaits_draft("a", bench.flights["d"][0].batch_id) is False


def test_while_a_draft_is_overdue_its_worker_is_asked_for_none():
    bench = late_bench()
    bench.verified()
    assert spans(bench, Draft) == []
    assert spans(bench) == [("a", 11, 12)]
    bench.arrive("b")
    bench.verified()
    bench.verified()
    assert spans(bench, Draft) == []


def test_a_late_draft_is_not_staged_but_what_the_worker_holds_is_known():
    bench = late_bench()
    bench.verified()
    bench.drafted()
    assert bench.row("a").num_drafted == 0
    bench.verified()
    assert spans(bench, Draft) == [("a", 11, 13)]
    assert bench.draft_of("a").key.epoch == 0


def test_a_late_failure_counts_as_one():
    bench = late_bench()
    bench.draft_failed()
    assert bench.row("a").num_draft_failures == 1


def test_a_draft_overdue_after_its_target_left_changes_nothing():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.verified("t")
    bench.lose("t")
    bench.overdue()
    assert bench.last == ()


def test_rows_in_line_behind_an_overdue_draft_go_on_too():
    bench = Bench(targets=("t", "u"), max_batches_in_flight=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    assert bench.phase("b") is Phase.WANTS_DRAFT
    bench.overdue()
    assert bench.batches() == [["a"], ["b"]]


def test_a_draining_worker_is_left_when_its_draft_is_overdue():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drain("d")
    bench.overdue()
    assert bench.releases() == [("d", "a")]
    assert bench.verify_of("a").num_draft_tokens == 0
    bench.drafted()
    assert bench.last == ()


def test_patience_is_given_with_every_draft_that_is_waited_for():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    assert bench.last[0].patience_seconds > 0


def test_a_row_cancelled_while_verified_teaches_nothing():
    """Nothing is committed of it: that says nothing of how well drafts do."""
    bench = Bench(rule="auto")
    verify, draft = PassCost(0.02, 0.021), PassCost(0.001, 0.002)
    for name in map(str, range(30)):
        bench.arrive(name)
        bench.verified(cost=verify)
        if bench.flights["d"]:
            bench.drafted(cost=draft)
        bench.cancel(name)
        bench.verified(cost=verify)
    bench.arrive("a", max_length=900)
    drafted = []
    for _ in range(8):
        bench.verified(cost=verify)
        if bench.flights["d"]:
            drafted.append(bench.draft_of("a").num_draft_tokens)
            bench.drafted(cost=draft)
    assert max(drafted, default=0) > 0
