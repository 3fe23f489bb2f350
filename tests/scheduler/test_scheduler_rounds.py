"""One rule per test: rounds, draft lengths, lockstep."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, spans

from coordinator.scheduler.commands import Draft, Verify
from coordinator.scheduler.rows import Phase
from coordinator.scheduler.speculation import FixedSpeculation, RoundPlan
from exspec.core.alignment import AlignmentPlan
from exspec.core.ids import Role
from exspec.core.rounds import EntryKey

# Rounds


def test_a_row_is_prefilled_then_drafted_then_verified():
    bench = Bench(rule="4")
    bench.arrive("a", length=10)
    assert spans(bench) == [("a", 0, 10)]
    assert bench.verify_of("a").num_draft_tokens == 0
    bench.verified()
    assert spans(bench, Draft) == [("a", 0, 11)]
    assert bench.draft_of("a").num_draft_tokens == 4
    bench.drafted()
    assert spans(bench) == [("a", 10, 11)]
    assert bench.verify_of("a").num_draft_tokens == 4


def test_full_acceptance_commits_one_more_than_was_drafted():
    bench = Bench(rule="4")
    bench.arrive("a", length=10)
    bench.verified()
    bench.drafted()
    bench.verified()
    assert bench.row("a").length == 10 + 1 + 5
    assert spans(bench, Draft) == [("a", 11, 16)]


def test_a_rejected_draft_leaves_the_target_one_short_of_the_log():
    bench = Bench(rule="4")
    bench.arrive("a", length=10)
    bench.verified()
    bench.drafted()
    bench.verified(accepted={"a": 2})
    bench.drafted()
    assert spans(bench) == [("a", 13, 14)]


def test_keys_rise_with_every_order():
    bench = Bench()
    bench.arrive("a")
    keys = [bench.verify_of("a").key]
    bench.verified()
    keys.append(bench.draft_of("a").key)
    bench.drafted()
    keys.append(bench.verify_of("a").key)
    assert keys == [EntryKey("a", 0, round_index) for round_index in (1, 2, 3)]


def test_a_finished_row_is_released_and_forgotten():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    bench.verified(finished=["a"])
    assert bench.releases() == [("t", "a"), ("d", "a")]
    assert bench.scheduler.phase_of("a") is None


def test_a_row_that_was_never_drafted_is_released_at_its_target_only():
    bench = Bench()
    bench.arrive("a")
    bench.verified(finished=["a"])
    assert bench.releases() == [("t", "a")]


# Draft lengths


@pytest.mark.parametrize(
    ("num_left", "num_drafts"), [(2, None), (3, 1), (4, 2), (6, 4), (7, 5), (50, 5)]
)
def test_no_more_is_drafted_than_can_be_committed(num_left, num_drafts):
    bench = Bench(rule="5")
    bench.arrive("a", length=10, max_length=10 + num_left)
    bench.verified()
    order = bench.draft_of("a")
    assert (order and order.num_draft_tokens) == num_drafts


@pytest.mark.parametrize("number", [0, 1, 9])
def test_a_request_has_its_own_draft_length(number):
    bench = Bench(rule="5")
    bench.arrive("a", max_draft_tokens=number)
    bench.verified()
    order = bench.draft_of("a")
    assert (order.num_draft_tokens if order else 0) == number
    assert (order is None) == (bench.verify_of("a") is not None)


def test_one_row_does_not_throttle_another():
    bench = Bench(rule="5", batch_size=2)
    bench.arrive("a", length=10, max_length=14)
    bench.arrive("b", length=10, max_length=90)
    bench.verified()  # the prefill of "a"; "b" joins
    bench.drafted()
    bench.verified(accepted={"a": 0})
    assert bench.draft_of("a").num_draft_tokens == 1
    assert bench.draft_of("b").num_draft_tokens == 5


def test_the_draft_context_bounds_that_row_only_and_then_ends_its_drafting():
    bench = Bench(drafts=())
    bench.join("d", Role.DRAFT, max_length=13)
    bench.arrive("a", length=10)
    bench.verified()
    assert bench.draft_of("a").num_draft_tokens == 2
    bench.drafted()
    bench.verified()  # 14 tokens now
    assert bench.releases() == [("d", "a")]
    assert bench.verify_of("a").num_draft_tokens == 0


class PerRow(FixedSpeculation):
    """Three tokens for "a", none for others."""

    def plan(self, target, num_rows, candidates, costs):
        return RoundPlan(tuple(3 * (one.row.sequence_id == "a") for one in candidates))


def test_a_rule_may_choose_per_row():
    bench = Bench(targets=(), rule=PerRow(0))
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    assert [order.num_draft_tokens for order in bench.last[0].orders] == [3]
    bench.drafted()
    assert [order.num_draft_tokens for order in bench.last[0].orders] == [3, 0]


def test_a_requests_own_number_does_not_ask_the_rule():
    bench = Bench(targets=(), rule="0")
    bench.arrive("a", max_draft_tokens=2)
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    assert bench.draft_of("a").num_draft_tokens == 2
    assert bench.draft_of("b") is None


# Lockstep


def test_all_rows_are_verified_together_once_all_are_drafted():
    bench = Bench(targets=(), drafts=(), batch_size=2)
    bench.join("d", Role.DRAFT, num_slots=1)
    bench.join("e", Role.DRAFT, num_slots=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    assert {row.draft.worker_id for row in map(bench.row, "ab")} == {"d", "e"}
    bench.drafted("e")
    assert spans(bench) == []
    assert bench.phase("b") is Phase.WANTS_VERIFY
    bench.drafted("d")
    assert [name for name, _, _ in spans(bench)] == ["a", "b"]


def test_a_new_row_joins_the_next_round():
    bench = Bench()
    bench.arrive("a")
    bench.verified()
    bench.arrive("b")  # "a" is being drafted
    assert bench.phase("b") is Phase.READY
    bench.drafted()
    assert spans(bench) == [("a", 10, 11)]
    bench.verified()
    assert bench.phase("b") is Phase.WANTS_VERIFY
    bench.drafted()
    assert sorted(spans(bench)) == [("a", 16, 17), ("b", 0, 10)]


def test_a_finished_rows_place_goes_to_the_next_in_the_queue():
    bench = Bench(batch_size=1)
    for name in "abc":
        bench.arrive(name)
    assert (bench.scheduler.num_waiting, bench.scheduler.num_running) == (2, 1)
    bench.verified(finished=["a"])
    assert spans(bench) == [("b", 0, 10)]
    bench.verified(finished=["b"])
    assert spans(bench) == [("c", 0, 10)]


def test_a_round_waits_for_a_draft_worker_that_has_no_room():
    bench = Bench(targets=("t", "u"), max_batches_in_flight=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    assert spans(bench, Draft) == [("a", 0, 11)]
    bench.verified("u")
    assert bench.last == ()
    bench.drafted()  # "a" is verified while "b" is drafted
    assert [type(command) for command in bench.last] == [Draft, Verify]
    assert (bench.draft_of("b") is None, bench.verify_of("a") is None) == (False, False)


def test_a_draft_worker_may_have_several_batches_in_flight():
    bench = Bench(targets=("t", "u"), max_batches_in_flight=2)
    bench.arrive("a")
    bench.arrive("b")
    bench.verified("t")
    bench.verified("u")
    assert [command.batch_id for command in bench.flights["d"]] == [3, 4]
    bench.drafted()
    assert bench.batches() == [["a"]]
    bench.drafted()
    assert bench.batches() == [["b"]]


def test_without_a_draft_worker_rows_decode_plainly():
    bench = Bench(drafts=())
    bench.arrive("a")
    bench.verified()
    assert spans(bench) == [("a", 10, 11)]


def test_rows_beyond_the_draft_workers_slots_decode_plainly():
    bench = Bench(targets=(), drafts=(), max_prefill_tokens=100)
    bench.join("d", Role.DRAFT, num_slots=1)
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    assert spans(bench, Draft) == [("a", 0, 11)]
    bench.drafted()
    assert [order.num_draft_tokens for order in bench.last[-1].orders] == [5, 0]


def test_the_batch_is_realigned_when_acceptance_differs():
    bench = Bench(targets=(), rule="4")
    bench.arrive("a")
    bench.arrive("b")
    bench.join("t", Role.TARGET)
    bench.verified()
    bench.drafted()
    assert bench.last[-1].alignment == AlignmentPlan(10, (0, 0), (0, 0))
    bench.verified(accepted={"a": 4, "b": 1})
    bench.drafted()
    assert bench.last[-1].alignment == AlignmentPlan(15, (0, 3), (0, 3))
    bench.verified(accepted={"a": 0, "b": 3})
    bench.drafted()
    assert bench.last[-1].alignment == AlignmentPlan(16, (0, 0), (0, -3))


def test_what_need_not_move_is_a_grouped_batch():
    bench = Bench(targets=(), rule="0")
    bench.arrive("a", length=10)
    bench.arrive("b", length=12)
    bench.join("t", Role.TARGET)
    assert bench.last[-1].alignment == AlignmentPlan(0, (0, 0), (0, 0))
    bench.verified()
    assert bench.last[-1].alignment == AlignmentPlan(12, (2, 0), (2, 0))
    bench.verified()
    assert bench.last[-1].alignment.is_noop
