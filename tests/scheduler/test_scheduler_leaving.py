"""One rule per test: draining workers and cancelled sequences."""

from __future__ import annotations

from scheduler_bench import Bench, home_of

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
    assert bench.phase("a") is Phase.WAITING


def test_a_draining_target_lets_idle_rows_go_at_once():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drain("t")  # "a" is being drafted, which nobody waits for now
    assert bench.releases() == [("t", "a"), ("d", "a")]
    assert bench.phase("a") is Phase.WAITING
    bench.drafted()
    assert bench.last == ()


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
    bench = Bench(targets=("t", "u"), max_batches_in_flight=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    bench.cancel("b")  # waits for the busy draft worker, which was told nothing of it
    assert bench.releases() == [("u", "b")]


def test_cancelling_a_ready_row_frees_its_place_at_once():
    bench = Bench(batch_size=2)
    for name in "abc":
        bench.arrive(name)
    assert bench.phase("b") is Phase.READY
    bench.cancel("b")
    assert (bench.phase("b"), bench.phase("c")) == (None, Phase.READY)
    assert bench.releases() == []


def test_cancelling_while_drafting_releases_both_homes_at_once():
    """Workers read what they are sent in its order, so the release comes after the batch."""
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.cancel("a")
    assert bench.releases() == [("t", "a"), ("d", "a")]
    assert bench.phase("a") is None
    assert (bench.scheduler.num_running, bench.scheduler.rows_on("d")) == (0, 0)
    bench.drafted()
    assert bench.last == ()


def test_cancelling_while_verifying_waits_for_the_reply():
    bench = Bench()
    bench.arrive("a")
    bench.cancel("a")
    assert bench.last == ()
    assert bench.phase("a") is Phase.FINISHED
    assert (bench.scheduler.num_running, bench.scheduler.rows_on("t")) == (0, 1)
    bench.verified()
    assert bench.releases() == [("t", "a")]
    assert bench.phase("a") is None


def test_a_round_does_not_wait_for_a_cancelled_row():
    bench = Bench(targets=(), drafts=())
    bench.join("d", Role.DRAFT, num_slots=1)
    bench.join("e", Role.DRAFT, num_slots=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    bench.drafted("d")
    bench.cancel("b")
    assert bench.batches() == [["a"]]


def test_a_round_whose_rows_all_ended_is_forgotten():
    bench = Bench(batch_size=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified()
    bench.cancel("a")
    assert bench.batches() == [["b"]]
    assert not bench.scheduler.state.workers["t"].groups


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


def test_a_row_cancelled_while_verified_leaves_a_lost_target_at_once():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.cancel("a")
    bench.lose("t")
    assert bench.releases() == [("d", "a")]
    assert bench.phase("a") is None


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
