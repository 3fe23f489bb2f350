"""The circuit of a worker: every move, and what must hold over any course of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.breaker import MOVES, Backoff, Breaker, CircuitState
from exspec.core.errors import InternalError

CLOSED, OPEN, HALF_OPEN = CircuitState
BACKOFF = Backoff(first_seconds=1.0, longest_seconds=10.0)


def _in(state: CircuitState) -> Breaker:
    breaker = Breaker(BACKOFF)
    if state is not CLOSED:
        breaker.fail(0.0)
    if state is HALF_OPEN:
        breaker.begin_trial(1.0)
    assert breaker.state is state
    return breaker


ACTS = {
    "fail": lambda breaker: breaker.fail(5.0),
    "miss": lambda breaker: breaker.miss(5.0),
    "begin_trial": lambda breaker: breaker.begin_trial(5.0),
    "pass_trial": lambda breaker: breaker.pass_trial(),
    "note_work": lambda breaker: breaker.note_work(),
}
TABLE = [
    # state, act, state after it (None: cannot happen), failures, seconds left
    (CLOSED, "fail", OPEN, 1, 1.0),
    (CLOSED, "miss", OPEN, 0, 1.0),
    (CLOSED, "begin_trial", None, 0, 0.0),
    (CLOSED, "pass_trial", None, 0, 0.0),
    (CLOSED, "note_work", CLOSED, 0, 0.0),
    (OPEN, "fail", None, 1, 0.0),
    (OPEN, "miss", None, 1, 0.0),
    (OPEN, "begin_trial", HALF_OPEN, 1, 0.0),
    (OPEN, "pass_trial", None, 1, 0.0),
    (OPEN, "note_work", None, 1, 0.0),
    (HALF_OPEN, "fail", OPEN, 2, 2.0),
    (HALF_OPEN, "miss", OPEN, 1, 1.0),
    (HALF_OPEN, "begin_trial", None, 1, 0.0),
    (HALF_OPEN, "pass_trial", CLOSED, 1, 0.0),
    (HALF_OPEN, "note_work", None, 1, 0.0),
]


@pytest.mark.parametrize(("state", "act", "after", "failures", "left"), TABLE)
def test_every_act_in_every_state(state, act, after, failures, left):
    breaker = _in(state)
    if after is None:
        with pytest.raises(InternalError):
            ACTS[act](breaker)
        assert breaker.state is state
    else:
        ACTS[act](breaker)
        assert breaker.state is after
    assert (breaker.num_failures, breaker.seconds_left(5.0)) == (failures, left)


def test_the_table_is_whole():
    assert {(state, act) for state, act, *_ in TABLE} == {
        (s, a) for s in CircuitState for a in ACTS
    }
    assert set(MOVES) == set(CircuitState)


def test_it_is_not_tried_before_its_time():
    breaker = _in(OPEN)
    with pytest.raises(InternalError, match="before its time"):
        breaker.begin_trial(0.999)
    assert breaker.state is OPEN
    breaker.begin_trial(1.0)


def test_waits_double_up_to_the_longest_and_start_anew_after_work():
    breaker, now, waits = Breaker(BACKOFF), 0.0, []
    for _ in range(6):
        breaker.fail(now)
        waits.append(breaker.seconds_left(now))
        now += waits[-1]
        breaker.begin_trial(now)
        breaker.pass_trial()  # a trial alone is no work
    assert waits == [1, 2, 4, 8, 10, 10]
    breaker.note_work()
    breaker.fail(now)
    assert breaker.seconds_left(now) == 1


def test_a_thousand_failures_are_no_trouble():
    assert Backoff(0.5, 300.0).seconds(1000) == 300.0


@given(st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.floats(0.01, 30)), max_size=60))
def test_whatever_happens(course):
    """Against an account of its own: legal moves only, waits within bounds, never tried early."""
    breaker, now, opened, failures = Breaker(BACKOFF), 0.0, 0.0, 0
    for act, seconds in course:
        now += seconds
        before, left = breaker.state, breaker.seconds_left(now)
        try:
            if act in ("fail", "miss", "begin_trial"):
                getattr(breaker, act)(now)
            else:
                getattr(breaker, act)()
        except InternalError:
            assert (breaker.state, breaker.num_failures) == (before, failures)
            assert breaker.seconds_left(now) == left
            continue
        assert breaker.state is before or breaker.state in MOVES[before]
        failures = {"fail": failures + 1, "note_work": 0}.get(act, failures)
        assert breaker.num_failures == failures
        if act in ("fail", "miss"):
            opened = now
            assert 1.0 - 1e-9 <= breaker.seconds_left(now) <= 10.0 + 1e-9
        if act == "begin_trial":
            assert now - opened >= min(2.0 ** max(0, failures - 1), 10.0) - 1e-9
        if breaker.state is not OPEN:
            assert breaker.seconds_left(now) == 0
