"""One rule per test: how targets are fed prompts, and how draft workers catch up."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, spans

from coordinator.scheduler.commands import Draft
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

# Targets


def test_a_long_log_goes_in_chunks():
    bench = Bench(max_prefill_tokens=4)
    bench.arrive("a", length=10, max_draft_tokens=0)
    seen = []
    while bench.row("a").length == 10:
        order = bench.verify_of("a")
        seen.append((order.start, order.end, order.is_prefill, order.num_draft_tokens))
        bench.verified()
    assert seen == [(0, 4, True, 0), (4, 8, True, 0), (8, 10, False, 0)]


def test_prefills_share_the_budget_first_come_first_served():
    bench = Bench(targets=(), rule="0", max_prefill_tokens=12, max_mixed_prefill_tokens=8)
    bench.arrive("a", length=10)
    bench.arrive("b", length=10)
    bench.arrive("c", length=10)
    bench.join("t", Role.TARGET)
    assert spans(bench) == [("a", 0, 10), ("b", 0, 2)]
    assert bench.phase("c") is Phase.READY  # it sits this round out
    bench.verified()
    assert sorted(spans(bench)) == [("a", 10, 11), ("b", 2, 10)]  # "a" waits: a smaller budget
    assert bench.phase("c") is Phase.READY


def test_decoding_rows_cost_no_prefill_budget():
    bench = Bench(targets=(), rule="0", max_prefill_tokens=10, max_mixed_prefill_tokens=1)
    bench.arrive("a", length=1)
    bench.arrive("b", length=10)
    bench.join("t", Role.TARGET)
    assert spans(bench) == [("a", 0, 1), ("b", 0, 1)]


def test_a_prefilling_row_does_not_draft():
    bench = Bench(max_prefill_tokens=2)
    bench.arrive("a", length=30)
    bench.verified()
    assert spans(bench, Draft) == []


@pytest.mark.parametrize(("held", "num_drafts"), [(6, 4), (5, None)])
def test_a_log_that_is_nearly_complete_drafts(held, num_drafts):
    """What the target lacks is fed with the drafts, if it is no more than a round's own tokens."""
    bench = Bench(rule="4")
    bench.arrive("a", length=11)
    bench.verified(a=(EntryStatus.LACKS_TOKENS, held))
    order = bench.draft_of("a")
    assert (order and order.num_draft_tokens) == num_drafts
    if order:
        bench.drafted()
    assert spans(bench) == [("a", held, 11)]
    assert bench.verify_of("a").num_draft_tokens == (num_drafts or 0)


def test_a_short_prompt_drafts_before_its_first_verify():
    bench = Bench(rule="4")
    bench.arrive("a", length=5)
    assert spans(bench, Draft) == [("a", 0, 5)]
    bench.drafted()
    assert spans(bench) == [("a", 0, 5)]
    assert bench.verify_of("a").num_draft_tokens == 4


def test_the_budget_is_smaller_in_a_batch_that_others_wait_for():
    bench = Bench(rule="0", max_prefill_tokens=20, max_mixed_prefill_tokens=3)
    bench.arrive("a")
    bench.arrive("b", length=30)
    bench.verified()
    assert sorted(spans(bench)) == [("a", 10, 11), ("b", 0, 3)]
    bench.verified(finished=["a"])
    assert spans(bench) == [("b", 3, 23)]


def test_what_passes_cost_is_the_budget_where_none_is_given():
    """A pass may be stretched by what the prompt tokens in it take, not more."""
    bench = Bench(rule="0", max_prefill_tokens=500)
    bench.arrive("a", max_length=900)
    for size in range(12):  # passes of 1 token take 11 ms, each token more 1 ms
        bench.verified(cost=PassCost(0.011, 0.012))
        if size == 4:
            bench.arrive("b", length=400, max_length=900)
    fed = [end - start for name, start, end in spans(bench) if name == "b"]
    assert fed
    assert 1 <= fed[0] < 100


def test_the_first_in_the_queue_is_fed_first():
    bench = Bench(targets=(), max_prefill_tokens=8)
    bench.arrive("a", priority=1)
    bench.arrive("b", priority=0)
    bench.join("t", Role.TARGET)
    assert spans(bench) == [("b", 0, 8)]


# Draft workers


def hungry_bench() -> Bench:
    """Row "a", of which the draft worker lacks 11 tokens and may be fed 4 at a time."""
    bench = Bench(rule="2", max_mixed_prefill_tokens=4)
    bench.arrive("a", length=10)
    bench.verified()
    return bench


def test_a_long_backlog_is_fed_beside_rounds_that_do_not_wait_for_it():
    bench = hungry_bench()
    fed = []
    while bench.verify_of("a"):
        fed += spans(bench, Draft)
        assert bench.verify_of("a").num_draft_tokens == 0
        if bench.flights["d"]:
            bench.drafted()
        bench.verified()
    assert fed == [("a", 0, 4), ("a", 4, 8), ("a", 8, 12)]
    assert spans(bench, Draft) == [("a", 12, 14)]
    assert bench.draft_of("a").num_draft_tokens == 2


def test_a_row_that_is_being_fed_is_not_fed_again():
    bench = hungry_bench()
    feed, _ = bench.last
    assert feed.orders[0].num_draft_tokens == 0
    bench.verified()
    assert spans(bench, Draft) == []
    assert spans(bench) == [("a", 11, 12)]
    bench.drafted()
    bench.verified()
    assert spans(bench, Draft) == [("a", 4, 8)]


def test_a_feed_has_a_patience_too():
    """Nobody waits for it, but others may wait for the room it takes at the worker."""
    bench = hungry_bench()
    assert bench.last[0].patience_seconds > 0
    bench.arrive("b", length=3)
    bench.overdue()
    bench.verified()
    assert bench.phase("b") is Phase.VERIFYING  # without asking that worker for a draft


def two_hungry_rows() -> Bench:
    """Both are verified and "a" is fed; "b" has to wait for the next feed."""
    bench = Bench(targets=(), rule="2", max_mixed_prefill_tokens=4)
    bench.arrive("a", length=4)
    bench.arrive("b", length=10)
    bench.join("t", Role.TARGET)
    bench.verified()
    assert spans(bench, Draft) == [("a", 0, 4)]
    return bench


def test_rows_share_the_feed_budget():
    bench = two_hungry_rows()
    bench.drafted()
    assert spans(bench, Draft) == [("b", 0, 4)]


def test_a_row_that_ended_is_fed_no_more():
    bench = two_hungry_rows()
    bench.cancel("b")
    bench.drafted()
    assert spans(bench, Draft) == []


def test_a_row_that_left_its_draft_worker_is_fed_no_more():
    bench = hungry_bench()
    bench.verified()
    bench.drain("d")
    assert bench.releases() == [("d", "a")]
    bench.drafted()
    bench.verified()
    assert spans(bench, Draft) == []


def newcomer_beside_a_running_row(seconds_per_fed_token: float) -> Bench:
    """Row "b" of 200 tokens after its prefill; passes take 50 ms, draft passes 4 ms.

    Row "a" ran alone before, and drafts are fed 1 to 3 tokens for it, so that all costs are known.
    """
    bench = Bench(rule="2", max_prefill_tokens=500)
    bench.arrive("a", max_length=900)
    for index in range(30):
        if index == 24:
            bench.arrive("b", length=200, max_length=900)
        if bench.flights["d"]:
            orders = bench.flights["d"][0].orders
            fed = sum(order.end - order.start for order in orders)
            seconds = 0.008 + seconds_per_fed_token * fed
            bench.drafted(cost=PassCost(seconds, seconds))
            continue
        bench.verified(accepted={"a": index // 2 % 3}, cost=PassCost(0.05, 0.05))
        if index > 24 and bench.row("b").target_kv_length:
            break
    assert bench.row("b").draft_kv_length == 0
    return bench


def test_a_draft_worker_that_catches_up_quickly_is_waited_for():
    bench = newcomer_beside_a_running_row(0.00005)
    assert ("b", 0, 201) in spans(bench, Draft)
    assert bench.draft_of("b").num_draft_tokens == 2


def test_a_draft_worker_that_catches_up_slowly_is_fed_in_pieces():
    bench = newcomer_beside_a_running_row(0.002)
    fed = [(start, end) for name, start, end in spans(bench, Draft) if name == "b"]
    assert [start for start, _ in fed] == [0]
    assert 0 < fed[0][1] < 100
    assert bench.draft_of("b").num_draft_tokens == 0
