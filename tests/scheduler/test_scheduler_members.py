"""One rule per test: homes, joining, losing workers."""

from __future__ import annotations

from scheduler_bench import Bench, home_of, spans

from coordinator.scheduler.commands import Draft
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

# Placement


def test_rows_go_to_the_target_with_fewest_rows_then_the_oldest():
    bench = Bench(targets=("t", "u"))
    for name in "abcd":
        bench.arrive(name)
    assert [home_of(bench, name) for name in "abcd"] == ["t", "u", "t", "u"]


def test_targets_are_filled_in_proportion_to_their_places():
    bench = Bench(targets=(), drafts=(), batch_size=8)
    bench.join("small", Role.TARGET, num_slots=2)
    bench.join("large", Role.TARGET, num_slots=6)
    homes = []
    for name in "abcdefgh":
        bench.arrive(name)
        homes.append(home_of(bench, name))
    assert homes == ["large", "small", *["large"] * 3, "small", *["large"] * 2]


def test_no_more_places_count_than_the_window_lets_be_used():
    bench = Bench(targets=(), drafts=(), batch_size=2)
    bench.join("t", Role.TARGET, num_slots=2)
    bench.join("u", Role.TARGET, num_slots=1000)
    for name in "abcd":
        bench.arrive(name)
    assert [home_of(bench, name) for name in "abcd"] == ["t", "u", "t", "u"]


def test_long_contexts_are_left_to_the_rows_that_need_them():
    bench = Bench(targets=(), drafts=(), batch_size=2)
    bench.join("long", Role.TARGET, num_slots=2, max_length=1000)
    bench.join("short", Role.TARGET, num_slots=2, max_length=100)
    bench.arrive("a", max_length=100)
    bench.arrive("b", max_length=900)
    bench.arrive("c", max_length=100)
    assert [home_of(bench, name) for name in "abc"] == ["short", "long", "short"]


def test_a_row_stays_where_it_is_when_another_target_is_empty():
    bench = Bench(drafts=())
    for name in "ab":
        bench.arrive(name)
    bench.join("u", Role.TARGET, num_slots=100)
    for _ in range(5):
        bench.verified()
    assert [home_of(bench, name) for name in "ab"] == ["t", "t"]


def test_draft_workers_get_rows_in_proportion_to_their_slots():
    bench = Bench(targets=(), drafts=(), batch_size=6)
    bench.join("large", Role.DRAFT, num_slots=4)
    bench.join("small", Role.DRAFT, num_slots=2)
    for name in "abcdef":
        bench.arrive(name)
    bench.join("t", Role.TARGET, num_slots=6)
    bench.verified()
    assert [bench.row(name).draft.worker_id for name in "abcdef"] == ["large"] * 4 + ["small"] * 2


def test_a_draft_worker_that_can_draft_to_the_end_goes_first():
    bench = Bench(targets=(), drafts=())
    bench.join("short", Role.DRAFT, max_length=50)
    bench.join("long", Role.DRAFT, max_length=500)
    bench.arrive("a", max_length=40)
    bench.arrive("b", max_length=400)
    bench.join("t", Role.TARGET)
    bench.verified()
    assert [bench.row(name).draft.worker_id for name in "ab"] == ["short", "long"]


def test_rows_of_a_target_share_a_draft_worker_up_to_its_share():
    """A draft batch has a fixed price: few workers draft for one round."""
    bench = Bench(targets=(), drafts=("d", "e"), batch_size=4)
    for name in "abcd":
        bench.arrive(name)
    bench.join("t", Role.TARGET, num_slots=4)
    bench.verified()
    assert [bench.row(name).draft.worker_id for name in "abcd"] == ["d", "d", "e", "e"]
    assert [type(command) for command in bench.last] == [Draft, Draft]


def paired_bench() -> Bench:
    """Rows "x" on "d" and "y" on "e", whose drafts took 1 ms and 100 ms; both with more slots."""
    bench = Bench(targets=(), drafts=("d", "e"), batch_size=2)
    bench.arrive("x", max_length=900)
    bench.arrive("y", max_length=900)
    bench.join("t", Role.TARGET, num_slots=2)
    bench.verified()
    bench.drafted("d", cost=PassCost(0.001, 0.002))
    bench.drafted("e", cost=PassCost(0.100, 0.101))
    return bench


def test_a_much_slower_draft_worker_is_chosen_last():
    """The round waits for the slowest of them."""
    bench = paired_bench()
    bench.verified(finished=["x", "y"])
    bench.arrive("a")
    bench.arrive("b")
    while not bench.row("b").draft:
        bench.verified()
        if bench.flights["d"]:
            bench.drafted("d")
    assert [bench.row(name).draft.worker_id for name in "ab"] == ["d", "d"]


def test_a_draft_worker_that_does_not_answer_is_chosen_last():
    bench = Bench(drafts=("d", "e"), batch_size=2)
    bench.arrive("a")
    bench.verified()
    bench.overdue("d")
    bench.verified(finished=["a"])
    bench.arrive("b")
    bench.verified()
    assert bench.row("b").draft.worker_id == "e"


def test_a_target_takes_no_more_rows_than_it_has_slots():
    bench = Bench(targets=(), batch_size=8)
    bench.join("t", Role.TARGET, num_slots=2)
    for name in "abc":
        bench.arrive(name)
    assert bench.scheduler.rows_on("t") == 2
    assert bench.phase("c") is Phase.WAITING
    assert bench.scheduler.rows_on("stranger") == 0


def test_a_row_that_fits_no_target_waits_and_blocks_nobody():
    bench = Bench(targets=())
    bench.join("t", Role.TARGET, max_length=50)
    bench.arrive("big", max_length=51)
    bench.arrive("small", max_length=50)
    assert bench.phase("big") is Phase.WAITING
    assert bench.phase("small") is Phase.VERIFYING
    bench.join("u", Role.TARGET, max_length=51)
    assert home_of(bench, "big") == "u"


def test_targets_run_independent_rounds():
    bench = Bench(targets=("t", "u"), drafts=("d", "e"))
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.drafted("d")
    bench.verified("t")
    assert bench.flights["u"][0].orders[0].key.round_index == 1
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


def test_a_row_whose_target_is_lost_does_not_wait_for_its_draft():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.verified("t")
    bench.lose("t")
    order = bench.verify_of("a")  # at once, though the draft is in flight
    assert (home_of(bench, "a"), order.start, order.end, order.key.epoch) == ("u", 0, 11, 1)
    assert order.num_draft_tokens == 0
    bench.drafted()
    assert bench.last == ()
    bench.verified("u")
    assert spans(bench, Draft) == [("a", 11, 12)]  # what came is not staged; what is held counts


def test_a_row_in_a_draft_batch_leaves_the_worker_when_it_goes_back_to_the_queue():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.lose("t")
    assert bench.phase("a") is Phase.WAITING
    assert bench.releases() == [("d", "a")]  # the worker reads it after the batch
    bench.drafted()
    assert bench.last == ()
    bench.join("t", Role.TARGET)
    bench.verified()
    assert spans(bench, Draft) == [("a", 0, 12)]
    assert bench.draft_of("a").key.epoch == 1


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
    assert bench.phase("b") is Phase.WAITING
    bench.verified(finished=["a"])
    assert bench.verify_of("b").key.epoch == 1


def test_a_refused_row_goes_to_another_target_with_room():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.verified("t", a=(EntryStatus.NO_CAPACITY, 0))
    assert home_of(bench, "a") == "u"


def test_a_row_refused_by_a_target_that_holds_nothing_waits_until_the_refusal_expires():
    bench = Bench()
    bench.arrive("a")
    for epoch in (1, 2):
        bench.verified(a=(EntryStatus.NO_CAPACITY, 0))
        assert (bench.phase("a"), bench.flights["t"]) == (Phase.WAITING, [])
        bench.arrive(f"b{epoch}")  # which helps nobody
        bench.cancel(f"b{epoch}")
        assert bench.flights["t"] == []
        bench.expire_refusal()
        assert bench.verify_of("a").key.epoch == epoch
    assert bench.scheduler.state.targets["t"].is_refusing
    bench.verified()
    assert bench.phase("a") is not Phase.WAITING
    assert not bench.scheduler.state.targets["t"].is_refusing


def test_lack_of_room_is_no_failure_of_the_row():
    bench = Bench()
    bench.arrive("a")
    bench.verified(a=(EntryStatus.NO_CAPACITY, 0))
    assert bench.scheduler.num_failures("a") == 0


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
    bench = Bench(targets=("t", "u"), max_batches_in_flight=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    assert bench.phase("b") is Phase.WANTS_DRAFT
    bench.lose("d")
    assert bench.phase("a") is Phase.VERIFYING
    assert bench.phase("b") is Phase.VERIFYING


def test_staged_drafts_outlive_their_worker():
    bench = Bench(targets=(), drafts=())
    bench.join("d", Role.DRAFT, num_slots=1)
    bench.join("e", Role.DRAFT, num_slots=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    bench.drafted("d")
    bench.lose("d")
    bench.drafted("e")
    assert [order.num_draft_tokens for order in bench.last[-1].orders] == [5, 5]
