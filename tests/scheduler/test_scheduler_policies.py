"""Which rows begin a round together, policy by policy, and how many groups are in play."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import Bench, spans
from scheduler_loop import Loop, Machine

from coordinator.scheduler.commands import Draft
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.rows import Phase
from coordinator.scheduler.scheduler import SchedulerLimits
from exspec.core.ids import Role


def window(policy, lengths, batch_size, **join) -> Bench:
    """Rows "a", "b"… of these lengths on one target, without drafts; the first group is out."""
    bench = Bench(
        targets=(), drafts=(), policy=policy, rule="0", batch_size=batch_size, window_size=16
    )
    for name, length in zip("abcdefghijklmnop", lengths, strict=False):
        bench.arrive(name, length=length, max_length=9_000)
    bench.join("t", Role.TARGET, num_slots=16, max_length=9_000, **join)
    return bench


def test_all_policies_are_listed_by_their_own_name():
    assert {name: factory().name for name, factory in POLICIES.items()} == {
        name: name for name in ("eqspec", "exspec", "eqspec-static", "exspec-paper")
    }


# EQSPEC


def test_eqspec_holds_no_more_rows_than_a_batch():
    bench = Bench(batch_size=2, window_size=8)
    for name in "abc":
        bench.arrive(name)
    assert bench.phase("c") is Phase.WAITING


def test_the_static_batch_is_refilled_when_all_of_it_has_ended():
    bench = Bench(targets=(), drafts=(), policy="eqspec-static", batch_size=2)
    for name in "abcd":
        bench.arrive(name)
    bench.join("t", Role.TARGET)
    assert bench.batches() == [["a", "b"]]
    bench.verified(finished=["a"])
    assert bench.batches() == [["b"]]
    bench.verified(finished=["b"])
    assert bench.batches() == [["c", "d"]]


def test_a_static_batch_has_begun_with_its_first_draft():
    bench = Bench(policy="eqspec-static", batch_size=2)
    bench.arrive("a", length=3)
    assert spans(bench, Draft) == [("a", 0, 3)]
    bench.arrive("b", length=3)
    assert bench.phase("b") is Phase.WAITING


# EXSPEC as in the paper


def test_the_paper_takes_the_first_full_set_of_one_length_in_window_order():
    bench = window("exspec-paper", [10, 12, 10, 12, 12, 10], batch_size=3)
    assert bench.batches() == [["b", "d", "e"]]


def test_the_paper_falls_back_to_the_head_of_the_window():
    bench = window("exspec-paper", [10, 11, 12, 13], batch_size=3)
    assert bench.batches() == [["a", "b", "c"]]


def test_the_paper_keeps_cold_and_warm_rows_apart():
    bench = window("exspec-paper", [10, 10], batch_size=2)
    bench.arrive("x", length=10, max_length=9_000, priority=-1)  # the head of the window, cold
    bench.verified()
    assert bench.row("a").end_column == 10
    assert bench.batches() == [["a", "b"]]


def test_the_paper_runs_one_batch_at_a_time_and_lets_rows_of_odd_lengths_wait():
    bench = window("exspec-paper", [10, 99, 10], batch_size=2)
    for _ in range(12):
        assert bench.batches() == [["a", "c"]]
        bench.verified()
    assert bench.row("b").num_passed_over == 13


def test_the_paper_groups_by_the_column_in_which_rows_end():
    bench = window("exspec-paper", [10, 11, 12, 12, 10], batch_size=2)
    assert bench.batches() == [["c", "d"]]
    bench.verified(finished=["c"])
    assert bench.batches() == [["a", "e"]]
    bench.verified(finished=["a", "e"])
    assert bench.batches() == [["b", "d"]]  # no two alike: the head of the window
    bench.verified()
    assert not bench.last[-1].alignment.is_noop  # a prompt beside one token: realigned
    bench.verified()
    assert bench.last[-1].alignment.is_noop


# EXSPEC


class Groups:
    """Stands for costs that say how many groups pay."""

    def __init__(self, num_groups, in_play=9):
        self._answers = num_groups, in_play

    def num_groups(self, target, num_rows, limits):
        return self._answers[0]

    def num_in_play(self, target):
        return self._answers[1]


def ready_rows(lengths, passed=None, **join) -> Bench:
    """Rows that are all ready, on a target that is told to begin nothing of itself."""
    bench = window("exspec-paper", [5] * len(lengths), batch_size=len(lengths), **join)
    bench.scheduler.policy.next_group = lambda *_: None
    bench.verified()
    for row, length in zip(bench.scheduler.state.rows.values(), lengths, strict=True):
        row.length, row.target_kv_length, row.left_pad = length, length - 1, 0
        row.num_passed_over = (passed or {}).get(row.sequence_id, 0)
    return bench


def chosen(bench, batch_size, num_groups, max_wait_rounds=None, in_play=9):
    """The names of the next group of "t"."""
    limits = SchedulerLimits(batch_size, 16, max_wait_rounds)
    target = bench.scheduler.state.workers["t"]
    rows = POLICIES["exspec"]().next_group(target, limits, Groups(num_groups, in_play))
    return rows and [row.sequence_id for row in rows]


def test_a_group_is_the_row_passed_over_most_and_those_of_like_length():
    bench = ready_rows([100, 500, 110, 520, 900, 510], passed={"d": 2})
    assert sorted(chosen(bench, 3, num_groups=2, max_wait_rounds=9)) == ["b", "d", "f"]


def test_lengths_that_differ_little_do_not_count():
    bench = ready_rows([100, 140, 101, 130], passed={})
    assert chosen(bench, 2, num_groups=2) == ["a", "b"]  # the order of the queue


def test_a_rectangular_target_groups_by_the_column_in_which_rows_end():
    bench = ready_rows([100, 140, 101, 100], kv_layout="padded")
    assert chosen(bench, 2, num_groups=2) == ["a", "d"]
    bench.row("b").left_pad, bench.row("d").left_pad = 0, 9
    bench.row("a").left_pad = 40
    assert chosen(bench, 2, num_groups=2) == ["a", "b"]


def test_rows_of_one_draft_worker_go_together():
    bench = ready_rows([100, 100, 900, 100])
    bench.join("d", Role.DRAFT)
    bench.row("c").draft = bench.row("a").draft = bench.scheduler.state.workers["d"]
    assert sorted(chosen(bench, 2, num_groups=2)) == ["a", "c"]


def test_the_deadline_of_any_row_goes_before_likeness():
    """With d left out of this round it would be passed over three times."""
    bench = ready_rows([100, 100, 100, 900], passed={"a": 2, "d": 2})
    assert sorted(chosen(bench, 2, num_groups=2, max_wait_rounds=9)) == ["a", "b"]
    assert sorted(chosen(bench, 2, num_groups=2, max_wait_rounds=2 + 5)) == ["a", "b"]
    bench.row("a").num_passed_over = bench.row("d").num_passed_over = 7
    assert sorted(chosen(bench, 2, num_groups=2, max_wait_rounds=7)) == ["a", "d"]


def test_a_group_grows_when_more_rows_than_it_holds_may_wait_no_longer():
    bench = ready_rows([100] * 6, passed=dict.fromkeys("bdef", 7))
    assert sorted(chosen(bench, 5, num_groups=3, max_wait_rounds=7)) == ["b", "d", "e", "f"]


def test_a_small_group_begins_only_while_nothing_is_in_play():
    bench = Bench(drafts=(), policy="exspec", rule="0", batch_size=4, window_size=8)
    bench.arrive("a")
    assert bench.batches() == [["a"]]
    bench.arrive("b")
    assert bench.batches() == []  # a pass of its own would only make the next one later
    bench.verified()
    assert bench.batches() == [["b", "a"]]


def test_rows_that_are_ready_begin_beside_a_group_in_play_if_more_groups_are_needed():
    bench = window("exspec", [10] * 6, batch_size=4)
    assert bench.batches() == [["a", "b", "c"], ["d", "e", "f"]]
    assert len(bench.flights["t"]) == 2
    bench.verified()
    assert bench.batches() == [["a", "b", "c"]]


@given(
    spare=st.lists(st.integers(0, 4), min_size=2, max_size=14),
    lengths=st.lists(st.sampled_from([10, 300, 900]), min_size=14, max_size=14),
    batch_size=st.integers(1, 6),
    num_groups=st.integers(1, 6),
    extra=st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_whoever_can_be_served_in_time_still_can_after_a_choice(
    spare, lengths, batch_size, num_groups, extra
):
    """Against a plain simulation of serving the most urgent B rows of every further round."""
    bound = -(-16 // batch_size) - 1 + extra
    waits = [max(0, bound - rounds) for rounds in spare]
    if not served_in_time(waits, batch_size, bound):
        return
    passed = dict(zip("abcdefghijklmn", waits, strict=False))
    bench = ready_rows(lengths[: len(waits)], passed)
    group = chosen(bench, batch_size, num_groups, bound)
    assert 1 <= len(group) <= batch_size
    rest = [number + 1 for name, number in passed.items() if name not in group]
    assert served_in_time(rest, batch_size, bound)
    assert max(waits) in [passed[name] for name in group]


def served_in_time(waits, batch_size, bound) -> bool:
    """`waits`: rounds passed so far. Whether all are served, B a round, within the bound."""
    left = sorted(waits, reverse=True)
    while left:
        if left[0] > bound:
            return False
        left = [one + 1 for one in left[batch_size:]]
    return True


# Groups in play, from what passes cost


@pytest.mark.parametrize(
    ("machine", "num_rows", "expected"),
    [
        # One group: 40 + 42 + 2 = 84 ms. Two: max(2 x 20, 2 x 22, 20 + 22 + 2) = 44 ms.
        (Machine(0.0, 0.005 / 4, 0.0, 0.002 / 3, 0.005 / 5.3), 8, 2),
        # Passes have a fixed price only. One: 20 + 7 + 2 = 29 ms. Two: 40 ms.
        (Machine(0.020, 0.0, 0.001, 0.002, 0.0), 8, 1),
        # Drafts are dear. One: 20 + 61 + 2 = 83 ms. Two: max(40, 122) ms.
        (Machine(0.020, 0.0, 0.001, 0.020, 0.0), 8, 1),
        # 16 rows need two groups of 8 anyway.
        (Machine(0.020, 0.0, 0.001, 0.002, 0.0), 16, 2),
    ],
)
def test_groups_in_play_are_those_of_the_shortest_cycle(machine, num_rows, expected):
    loop = Loop(machine, lambda now: 0.5, "3", "exspec", 8, num_rows)
    loop.fill(num_rows)
    loop.run_until(60)
    steady = loop.run_until(60)
    assert max(one.num_in_play for one in steady) == expected
    assert sum(one.num_rows for one in steady) == pytest.approx(60 * num_rows / expected, rel=0.1)
