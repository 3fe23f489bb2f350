"""Settings: the limits with their messages, and speculation rules from text."""

from __future__ import annotations

import re

import pytest
from scheduler_bench import Bench

from coordinator.scheduler.rules import HELP, speculation_rule
from coordinator.scheduler.scheduler import SchedulerLimits
from exspec.core.ids import Role
from exspec.core.params import MAX_SPECULATIVE_TOKENS

# Limits


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_batches_in_flight": 0}, "max_batches_in_flight must be at least 1, got 0"),
        ({"max_prefill_tokens": -1}, "max_prefill_tokens must be at least 1, got -1"),
        ({"max_mixed_prefill_tokens": 0}, "max_mixed_prefill_tokens must be at least 1, got 0"),
        ({"window_size": 7}, "window_size must be at least batch_size, 8, got 7"),
        (
            {"window_size": 33, "max_wait_rounds": 3},
            "max_wait_rounds must be at least 4 for a window of 33 rows in batches of 8, got 3",
        ),
        ({"max_wait_rounds": -1}, "max_wait_rounds must be at least 0"),
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(limits, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SchedulerLimits(**limits)


def test_the_window_is_a_batch_if_nothing_else_is_said():
    assert SchedulerLimits(batch_size=5).window == 5
    assert SchedulerLimits(batch_size=5, window_size=9).window == 9


@pytest.mark.parametrize(
    ("window_size", "least"), [(8, 0), (9, 1), (16, 1), (17, 2), (32, 3), (33, 4)]
)
def test_the_least_wait_is_what_taking_turns_needs(window_size, least):
    limits = SchedulerLimits(batch_size=8, window_size=window_size, max_wait_rounds=least)
    assert limits.least_wait_rounds == least
    assert limits.longest_wait == least


def test_the_usual_wait_grows_with_the_window():
    assert SchedulerLimits(batch_size=8, window_size=8).longest_wait == 8
    assert SchedulerLimits(batch_size=1, window_size=20).longest_wait == 38


# Rules


@pytest.mark.parametrize(
    ("text", "stands_for"),
    [
        ("auto", "auto"),
        (" auto ", "auto"),
        ("auto:3", "auto:3"),
        ("auto:0", "auto:0"),
        ("0", "0"),
        ("5", "5"),
        (" 12 ", "12"),
        (str(MAX_SPECULATIVE_TOKENS), str(MAX_SPECULATIVE_TOKENS)),
        ("[[1,4,5]]", "[[1,4,5]]"),
        ("[[1, 4, 5], [5, 8, 3], [9, 64, 0]]", "[[1,4,5],[5,8,3],[9,64,0]]"),
        ("[[2,2,1],[7,7,2]]", "[[2,2,1],[7,7,2]]"),
    ],
)
def test_a_rule_is_read_and_written(text, stands_for):
    assert speculation_rule(text).text == stands_for
    assert speculation_rule(stands_for).text == stands_for


TOO_MANY = MAX_SPECULATIVE_TOKENS + 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "automatic",
        "auto:",
        "auto:x",
        "auto:-1",
        "auto:3:4",
        f"auto:{TOO_MANY}",
        "-1",
        "1.5",
        "1e1",
        "0x3",
        "٣x",
        str(TOO_MANY),
        "[",
        "[]",
        "[[]]",
        "[1,2,3]",
        "[[1,2]]",
        "[[1,2,3,4]]",
        "[[1,2,3],4]",
        '[[1,2,"3"]]',
        "[[1,2,3.0]]",
        "[[1,2,true]]",
        "[[1,2,null]]",
        "[[0,2,3]]",
        "[[3,2,1]]",
        "[[1,2,-1]]",
        f"[[1,2,{TOO_MANY}]]",
        "[[1,4,2],[4,8,1]]",
        "[[5,8,2],[1,4,1]]",
        "[[1,2,3]] x",
        '{"1": 2}',
        "null",
        "true",
    ],
    ids=repr,
)
def test_what_stands_for_no_rule_is_refused_with_what_may_be_written(text):
    with pytest.raises(ValueError, match="speculation") as caught:
        speculation_rule(text)
    assert HELP in str(caught.value)


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(1, 5), (2, 5), (3, 2), (4, 2), (5, 0), (6, 1), (7, 0)]
)
def test_a_table_gives_k_by_the_rows_of_the_round(num_rows, expected):
    bench = Bench(targets=(), rule="[[1,2,5],[3,4,2],[6,6,1]]")
    for index in range(num_rows):
        bench.arrive(f"s{index}")
    bench.join("t", Role.TARGET)
    bench.verified()
    drafted = [bench.draft_of(f"s{index}") for index in range(num_rows)]
    assert {order and order.num_draft_tokens for order in drafted} == {expected or None}


@pytest.mark.parametrize(("rule", "most"), [("auto:1", 1), ("auto:0", 0), ("0", 0), ("7", 7)])
def test_no_rule_gives_more_than_its_text_says(rule, most):
    bench = Bench(rule=rule)
    bench.arrive("a", max_length=900)
    seen = set()
    for _ in range(30):
        bench.verified()
        order = bench.draft_of("a")
        seen.add(order.num_draft_tokens if order else 0)
        if order:
            bench.drafted()
    assert max(seen) == most


def test_rows_in_prefill_are_no_rows_of_the_table():
    bench = Bench(targets=(), rule="[[1,1,4]]", max_prefill_tokens=10, max_mixed_prefill_tokens=20)
    bench.arrive("a", length=10)
    bench.arrive("b", length=400, max_length=900)
    bench.join("t", Role.TARGET)
    bench.verified()
    assert bench.draft_of("a").num_draft_tokens == 4
