"""One rule per test: draining workers and cancelled sequences."""

from __future__ import annotations

from scheduler_bench import Bench, home_of

from coordinator.scheduler.commands import Verify
from coordinator.scheduler.rows import Phase
from exspec.core.ids import Role

# Draining


def test_a_draining_target_ends_its_batch_then_its_rows_move():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.drain("t")
    assert bench.last == ()
    bench.verified("t")
    assert bench.releases() == [("t", "a")]
    order = bench.verify_of("a")
    assert (home_of(bench, "a"), order.start, order.end, order.key.epoch) == ("u", 0, 11, 1)


def test_a_draining_target_takes_no_new_rows():
    bench = Bench()
    bench.drain("t")
    bench.arrive("a")
    assert bench.scheduler.phase_of("a") is Phase.WAITING


def test_a_draining_target_lets_idle_rows_go_at_once():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drain("t")  # "a" is being drafted
    assert bench.releases() == [("t", "a")]
    bench.drafted()
    assert bench.scheduler.phase_of("a") is Phase.WAITING


def test_a_row_cancelled_on_a_draining_target_is_released_after_its_batch():
    bench = Bench()
    bench.arrive("a")
    bench.cancel("a")
    bench.drain("t")
    assert bench.releases() == []
    bench.verified()
    assert bench.releases() == [("t", "a")]


def test_a_draining_draft_worker_ends_its_batch_then_lets_go():
    bench = Bench(drafts=("d",))
    bench.arrive("a")
    bench.verified()
    bench.drain("d")
    assert bench.last == ()
    bench.drafted()
    assert bench.releases() == [("d", "a")]
    assert bench.verify_of("a").num_draft_tokens == 5
    bench.verified()
    assert bench.verify_of("a").num_draft_tokens == 0


# Cancelling


def test_cancelling_an_idle_row_releases_it_at_once():
    bench = Bench(targets=("t", "u"))
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    bench.cancel("b")  # waits for the busy draft worker, which was told nothing of it
    assert bench.releases() == [("u", "b")]


def test_cancelling_while_drafting_releases_both_homes_after_the_reply():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.cancel("a")
    assert bench.last == ()
    assert not bench.scheduler.has_sequence("a")
    assert bench.scheduler.num_running == 0
    assert bench.scheduler.rows_on("t") == 1
    bench.drafted()
    assert bench.releases() == [("t", "a"), ("d", "a")]


def test_a_round_does_not_wait_for_a_cancelled_row():
    bench = Bench(targets=(), drafts=("d", "e"))
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    bench.drafted("d")
    bench.cancel("b")
    assert isinstance(bench.last[0], Verify)
    assert [order.key.sequence_id for order in bench.last[0].orders] == ["a"]


def test_a_cancelled_row_whose_worker_dies_is_released_at_the_other_only():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.cancel("a")
    bench.lose("d")
    assert bench.releases() == [("t", "a")]
    assert bench.scheduler.phase_of("a") is None


def test_a_cancelled_row_whose_other_home_dies_waits_for_its_batch():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.cancel("a")
    bench.lose("d")
    assert bench.last == ()
    bench.verified()
    assert bench.releases() == [("t", "a")]


def test_a_cancelled_row_being_drafted_outlives_its_target_until_the_reply():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.cancel("a")
    bench.lose("t")
    assert bench.last == ()
    bench.drafted()
    assert bench.releases() == [("d", "a")]


def test_a_failed_batch_releases_its_cancelled_rows():
    bench = Bench()
    bench.arrive("a")
    bench.cancel("a")
    bench.verify_failed()
    assert bench.releases() == [("t", "a")]


def test_cancelling_twice_or_a_stranger_is_nothing():
    bench = Bench()
    bench.arrive("a")
    bench.cancel("a")
    assert bench.cancel("a") == ()
    assert bench.cancel("stranger") == ()
    bench.verified()
    assert bench.releases() == [("t", "a")]
    assert bench.cancel("a") == ()
