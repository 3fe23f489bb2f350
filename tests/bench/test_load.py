"""Load against a coordinator that answers from a script."""

from __future__ import annotations

import threading

import pytest

from exspec.bench.load import (
    LoadPlan,
    repeated,
    run_load,
    tokenize_chats,
    tokenize_texts,
    totals_between,
)
from exspec.client import Client
from exspec.client.fake import FakeCoordinator
from exspec.client.fake_answers import FakeReply
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError, WorkerLostError
from exspec.core.generation import SpeculationStats


@pytest.fixture
def fake():
    with FakeCoordinator(default_text="okay") as coordinator:
        yield coordinator


def test_answers_come_back_in_the_order_of_the_prompts(fake):
    plan = LoadPlan(1, {"max_tokens": 2, "num_speculative_tokens": 3})
    fake.script(
        *(
            FakeReply(
                text,
                speculation=SpeculationStats(
                    2, 6, 4, num_looked_up_tokens=3, num_accepted_looked_up_tokens=1
                ),
            )
            for text in ("ab", "cd")
        )
    )
    num_done = []
    outcome = run_load(fake.address, [(1, 2), (3,)], plan, lambda: num_done.append(1))
    assert [result.text for result in outcome.completed] == ["ab", "cd"]
    assert outcome.errors == ()
    assert outcome.num_tokens == 4
    assert outcome.speculation == SpeculationStats(
        4, 12, 8, num_looked_up_tokens=6, num_accepted_looked_up_tokens=2
    )
    assert outcome.seconds > 0
    assert len(num_done) == 2
    assert {request.sampling.max_tokens for request in fake.requests} == {2}
    assert {request.speculation.num_speculative_tokens for request in fake.requests} == {3}


def test_a_failure_is_one_result_among_others(fake):
    fake.script(FakeReply("a"), FakeReply("", error=WorkerLostError("gone")), FakeReply("c"))
    outcome = run_load(fake.address, [(1,), (2,), (3,)], LoadPlan(1, {"max_tokens": 4}))
    assert [type(result).__name__ for result in outcome.results] == [
        "GenerationResult",
        "WorkerLostError",
        "GenerationResult",
    ]
    with pytest.raises(WorkerLostError, match="gone"):
        outcome.raise_first_error()


def test_so_many_are_in_flight_and_no_more(fake):
    seen, lock, both = [], threading.Lock(), threading.Barrier(2, timeout=5)
    take, note_end = fake.take, fake.note_end
    open_now = [0]

    def counted_take(message):
        with lock:
            open_now[0] += 1
            seen.append(open_now[0])
        both.wait()
        return take(message)

    def counted_end(*, was_cancelled):
        with lock:
            open_now[0] -= 1
        note_end(was_cancelled=was_cancelled)

    fake.take, fake.note_end = counted_take, counted_end
    outcome = run_load(fake.address, [(n,) for n in range(1, 7)], LoadPlan(2, {}))
    assert not outcome.errors
    assert max(seen) == 2


def test_no_request_in_flight_is_refused():
    with pytest.raises(InvalidRequestError, match="in flight"):
        LoadPlan(0, {})


def test_prompts_that_are_too_long_lose_their_end(fake):
    with Client(fake.address) as client:
        bare = tokenize_texts(client, ["abc", "abcdef"], 4)
        chats = tokenize_chats(client, ["abc"], 100)
        with pytest.raises(InvalidRequestError, match="cannot be cut to 0"):
            tokenize_texts(client, ["abc"], 0)
    assert bare.prompts == (tuple(b"abc"), tuple(b"abcd"))
    assert bare.num_cut == 1
    assert chats.prompts == (tuple(b"user: abc\n"),)
    assert chats.num_cut == 0


def test_prompts_repeat_when_they_run_out():
    assert repeated([(1,), (2,)], 5) == ((1,), (2,), (1,), (2,), (1,))
    assert repeated([(1,), (2,)], 1) == ((1,),)
    with pytest.raises(InvalidRequestError, match="at least one prompt"):
        repeated([], 1)


def test_totals_are_subtracted_field_by_field():
    before = Totals(num_rounds=3, round_seconds=1.5, num_moved_rows=7)
    after = Totals(num_rounds=10, round_seconds=4.0, num_moved_rows=7, num_requests=2)
    assert totals_between(before, after) == Totals(num_rounds=7, round_seconds=2.5, num_requests=2)
