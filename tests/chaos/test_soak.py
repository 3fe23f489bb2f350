"""The soak's own judgement: it must find what it is there to find. Runs of it are `make soak`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from exspec.core.acceptance import FinishReason
from exspec.core.errors import (
    ContextLengthError,
    DeadlineExceededError,
    InternalError,
    PeerError,
    ProtocolError,
    QueueFullError,
    UnavailableError,
    WorkerLostError,
)
from tests.chaos.soak_clients import Tally
from tests.chaos.soak_memory import growth_of
from tests.chaos.soak_orders import WEIGHTS, Catalog, Kind, Order, Verdict
from tests.chaos.soak_report import Report

OPTIONS = {"max_tokens": 20, "ignore_eos": True, "priority": 0}


@pytest.fixture(scope="module")
def catalog(pair, truth) -> Catalog:
    """Samples of a seed."""
    return Catalog(pair, truth, Random(0))


@pytest.fixture
def order(catalog) -> Order:
    """An ordinary call."""
    return Order(Kind.GENERATE, (catalog.samples[2],), OPTIONS)


def test_a_right_answer_is_right_and_any_other_is_wrong(catalog, order):
    right = catalog.expected(order.samples[0], OPTIONS)
    assert catalog.judge(order, 0, right) is Verdict.RIGHT
    for wrong in (
        replace(right, tokens=(*right.tokens[:-1], right.tokens[-1] ^ 1)),
        replace(right, tokens=right.tokens[:-1]),
        replace(right, text=right.text + " "),
        replace(right, finish_reason=FinishReason.STOP_TOKEN),
        replace(right, num_prompt_tokens=0),
    ):
        assert catalog.judge(order, 0, wrong) is Verdict.WRONG


def test_a_left_answer_is_judged_up_to_where_it_was_left(catalog, order):
    right = catalog.expected(order.samples[0], OPTIONS)
    left = replace(right, tokens=right.tokens[:5], text="", finish_reason=None)
    assert catalog.judge(order, 0, left) is Verdict.ABANDONED
    wrong = replace(left, tokens=(right.tokens[0] ^ 1,))
    assert catalog.judge(order, 0, wrong) is Verdict.WRONG


def test_a_stop_string_cuts_the_text_before_it_and_the_tokens_after_it(catalog):
    sample = next(s for s in catalog.samples if len(_ascii(catalog, s)) > 1)
    stop = _ascii(catalog, sample)[1]
    answer = catalog.expected(sample, OPTIONS | {"stop": [stop]})
    assert answer.finish_reason is FinishReason.STOP_STRING
    assert stop not in answer.text
    assert stop in catalog._text(answer.tokens)


def _ascii(catalog, sample) -> str:
    return "".join(c for c in catalog._text(sample.tokens[:20]) if c.isascii() and c.isprintable())


@pytest.mark.parametrize(
    ("kind", "error", "verdict"),
    [
        (Kind.GENERATE, UnavailableError("x"), Verdict.REFUSED),
        (Kind.GENERATE, QueueFullError("x"), Verdict.REFUSED),
        (Kind.GENERATE, WorkerLostError("x"), Verdict.REFUSED),
        (Kind.GENERATE, PeerError("x"), Verdict.REFUSED),
        (Kind.GENERATE, ProtocolError("x"), Verdict.UNTYPED),
        (Kind.GENERATE, InternalError("x"), Verdict.UNTYPED),
        (Kind.GENERATE, DeadlineExceededError("x"), Verdict.UNTYPED),
        (Kind.DEADLINE, DeadlineExceededError("x"), Verdict.REFUSED),
        (Kind.GENERATE, ContextLengthError("x"), Verdict.UNTYPED),
        (Kind.BAD, ContextLengthError("x"), Verdict.REFUSED),
    ],
)
def test_which_errors_are_nobodys_bug(catalog, order, kind, error, verdict):
    assert catalog.judge(replace(order, kind=kind), 0, error) is verdict


def test_who_wants_to_be_last_may_wait_for_long(catalog, order):
    patient = replace(order, options=OPTIONS | {"priority": 5})
    assert catalog.judge(patient, 0, DeadlineExceededError("x")) is Verdict.REFUSED


def test_a_bad_request_that_is_answered_is_a_finding(catalog, order):
    right = catalog.expected(order.samples[0], OPTIONS)
    assert catalog.judge(replace(order, kind=Kind.BAD), 0, right) is Verdict.WRONG


def test_all_kinds_are_drawn(catalog):
    random = Random(0)
    assert {catalog.draw(random).kind for _ in range(300)} == set(WEIGHTS) == set(Kind)


def test_memory_that_grows_is_found_and_memory_that_warms_up_is_not():
    leaking = growth_of("a", 1, [(second, 100 + second / 10) for second in range(600)])
    assert not leaking.is_flat
    assert leaking.slope_mib_per_minute == pytest.approx(6)
    warming = growth_of("b", 2, [(s, 100 + min(s, 200) / 2) for s in range(600)])
    assert warming.is_flat


def report(tally: Tally, **changes) -> Report:
    values = {"happenings": {}, "growths": [], "problems": [], **changes}
    return Report(0, 1.0, tally, **values)


def test_what_makes_a_soak_fail(catalog, order):
    right = catalog.expected(order.samples[0], OPTIONS)
    good = Tally()
    assert report(good).violations == ["no request was answered"]
    good.note(catalog, order, [right], 1.0)
    assert report(good).violations == []
    assert report(good, problems=["a row leaked"]).violations == ["a row leaked"]
    leaking = growth_of("a", 1, [(second, 100 + second / 10) for second in range(600)])
    assert len(report(good, growths=[leaking]).violations) == 1
    good.note(catalog, order, [InternalError("x")], 1.0)
    good.note_lost(order, "it hung")
    assert report(good).violations == ["1 requests: unexpected error", "1 requests: lost"]
    assert report(good).as_dict()["requests"]["lost"] == 1
