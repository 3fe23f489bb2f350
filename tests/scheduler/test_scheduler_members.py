"""One rule per test: homes, joining, losing workers."""

from __future__ import annotations

from scheduler_bench import Bench, home_of

from coordinator.scheduler.commands import Draft
from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

# Placement


def test_rows_go_to_the_target_with_fewest_rows_then_the_oldest():
    bench = Bench(targets=("t", "u"))
    for name in "abcd":
        bench.arrive(name)
    assert [home_of(bench, name) for name in "abcd"] == ["t", "u", "t", "u"]


def test_draft_workers_are_chosen_by_load_too():
    bench = Bench(targets=(), drafts=("d", "e"))
    for name in "abcd":
        bench.arrive(name)
    bench.join("t", Role.TARGET)
    bench.verified()
    assert [bench.row(name).draft.worker_id for name in "abcd"] == ["d", "e", "d", "e"]
    assert [type(command) for command in bench.last] == [Draft, Draft]


def test_a_target_takes_no_more_rows_than_it_has_slots():
    bench = Bench(targets=(), batch_size=8)
    bench.join("t", Role.TARGET, num_slots=2)
    for name in "abc":
        bench.arrive(name)
    assert bench.scheduler.rows_on("t") == 2
    assert bench.scheduler.phase_of("c") is Phase.WAITING
    assert bench.scheduler.rows_on("stranger") == 0


def test_a_row_that_fits_no_target_waits_and_blocks_nobody():
    bench = Bench(targets=())
    bench.join("t", Role.TARGET, max_length=50)
    bench.arrive("big", max_length=51)
    bench.arrive("small", max_length=50)
    assert bench.scheduler.phase_of("big") is Phase.WAITING
    assert bench.scheduler.phase_of("small") is Phase.VERIFYING
    bench.join("u", Role.TARGET, max_length=51)
    assert home_of(bench, "big") == "u"


def test_targets_run_independent_rounds():
    bench = Bench(targets=("t", "u"), drafts=("d", "e"))
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.drafted("d")
    bench.verified("t")
    assert bench.flights["u"].orders[0].key.round_index == 1
    assert bench.row("a").round_index == 4


# Losing a target


def test_a_lost_targets_rows_move_and_their_log_is_sent_whole():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.verified("t")
    bench.drafted()
    bench.lose("t")
    order = bench.verify_of("a")
    assert home_of(bench, "a") == "u"
    assert (order.key.epoch, order.start, order.end, order.num_draft_tokens) == (1, 0, 11, 0)
    assert bench.releases() == []
    assert bench.row("a").draft.worker_id == "d"
    assert bench.scheduler.num_failures("a") == 1


def test_rows_without_a_target_stand_where_they_stood_in_the_queue():
    bench = Bench(targets=(), batch_size=2)
    bench.join("t", Role.TARGET)
    for name in "abcd":
        bench.arrive(name)
    bench.lose("t")
    assert [row.sequence_id for row in bench.scheduler.state.waiting] == ["a", "b", "c", "d"]
    bench.join("u", Role.TARGET)
    assert [order.key.sequence_id for order in bench.last[0].orders] == ["a", "b"]


def test_a_row_that_goes_back_to_the_queue_gives_its_draft_slot_back():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.lose("t")
    assert bench.releases() == [("d", "a")]
    assert bench.scheduler.rows_on("d") == 0


def test_a_draft_in_flight_survives_its_target():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.lose("t")
    assert bench.scheduler.phase_of("a") is Phase.DRAFTING
    bench.join("u", Role.TARGET)
    assert bench.last == ()
    bench.drafted()
    order = bench.verify_of("a")
    assert (order.start, order.end, order.key.epoch, order.num_draft_tokens) == (0, 11, 1, 0)


def test_a_draft_in_flight_with_no_target_left_ends_in_the_queue():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.lose("t")
    bench.drafted()
    assert bench.scheduler.phase_of("a") is Phase.WAITING
    assert bench.releases() == [("d", "a")]


def test_a_target_that_comes_back_is_empty():
    bench = Bench(drafts=())
    bench.arrive("a")
    bench.verified()
    bench.lose("t")
    bench.join("t", Role.TARGET)
    order = bench.verify_of("a")
    assert (order.start, order.end, order.key.epoch) == (0, 11, 1)


def test_a_full_target_is_not_filled_before_one_of_its_rows_leaves():
    bench = Bench(targets=(), drafts=(), batch_size=2)
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified(b=(EntryStatus.NO_CAPACITY, 0))
    assert bench.releases() == [("t", "b")]
    bench.verified()
    assert bench.scheduler.phase_of("b") is Phase.WAITING
    bench.verified(finished=["a"])
    assert bench.verify_of("b").key.epoch == 1


def test_a_refused_row_goes_to_another_target_with_room():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.verified("t", a=(EntryStatus.NO_CAPACITY, 0))
    assert home_of(bench, "a") == "u"


def test_a_lone_refused_row_tries_again():
    bench = Bench()
    bench.arrive("a")
    bench.verified(a=(EntryStatus.NO_CAPACITY, 0))
    assert bench.verify_of("a").key.epoch == 1
    assert bench.scheduler.num_failures("a") == 1


# Losing a draft worker


def test_a_lost_draft_worker_costs_one_round_of_speed():
    bench = Bench(drafts=("d", "e"))
    bench.arrive("a")
    bench.verified()
    bench.lose("d")
    assert bench.verify_of("a").num_draft_tokens == 0
    bench.verified()
    assert bench.last[0].worker_id == "e"
    order = bench.draft_of("a")
    assert (order.start, order.end, order.key.epoch) == (0, 12, 1)


def test_rows_waiting_for_a_lost_draft_worker_go_on():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    assert bench.scheduler.phase_of("b") is Phase.WANTS_DRAFT
    bench.lose("d")
    assert bench.scheduler.phase_of("a") is Phase.VERIFYING
    assert bench.scheduler.phase_of("b") is Phase.VERIFYING


def test_staged_drafts_outlive_their_worker():
    bench = Bench(targets=(), drafts=("d", "e"))
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    bench.drafted("d")
    bench.lose("d")
    bench.drafted("e")
    assert [order.num_draft_tokens for order in bench.last[-1].orders] == [5, 5]
