"""A coordinator that is lost in mid-stream: both clients go on where they were."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from exspec import (
    Completed,
    Delta,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    Started,
    UnavailableError,
)
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.client.fake_answers import FAKE_FINGERPRINT, FAKE_SEED
from exspec.core.generation import Resume

TEXT = "a€b, héllo"


@pytest.mark.parametrize("places", [(0,), (1,), (5,), (len(TEXT),), (2, 4, 4, 9)])
def test_a_lost_generation_goes_on_undisturbed(client, fake, quick_retries, places):
    fake.reply(TEXT)
    whole = client.generate("Hi", request_id="mine", max_tokens=50, temperature=1)
    fake.script(FakeReply(TEXT, lose_after=places))
    with client.stream("Hi", request_id="mine", max_tokens=50, temperature=1) as stream:
        events = list(stream)
        again = stream.final()
    assert [type(event) for event in events] == [Started, *[Delta] * len(TEXT), Completed]
    assert "".join(e.text for e in events if isinstance(e, Delta)) == TEXT
    assert again.num_resumes == len(places)
    assert whole.num_resumes == 0
    for field in ("text", "token_ids", "usage", "finish_reason", "request_id", "model", "seed"):
        assert getattr(again, field) == getattr(whole, field)
    last = fake.requests[-1]
    sent = tuple(TEXT[: places[-1]].encode())
    assert last.resume == Resume(sent, FAKE_FINGERPRINT, 50, seed=FAKE_SEED)
    assert again.num_resumed_tokens == len(sent)
    assert last.request_id == "mine"


def test_a_batch_resumes_the_prompts_that_are_left(client, fake, quick_retries):
    fake.script(
        FakeReply("first"),
        FakeReply("second", lose_after=(3,)),
        FakeReply(error=InvalidRequestError("odd", field="prompt")),
        FakeReply("fourth", lose_after=(0, 6)),
    )
    results = client.generate_batch(["a", "b", "c", "d"], request_id="batch", max_tokens=9)
    assert [getattr(result, "text", None) for result in results] == [
        "first", "second", None, "fourth",
    ]  # fmt: skip
    assert isinstance(results[2], InvalidRequestError)
    assert [result.request_id for result in results] == [f"batch-{i}" for i in range(4)]
    assert [getattr(result, "num_resumes", None) for result in results] == [0, 1, None, 2]


def test_events_of_a_batch_come_once_each(client, fake, quick_retries):
    fake.script(FakeReply("ab", lose_after=(1, 2)), FakeReply("c"))
    with client.stream_batch(["x", "y"], max_tokens=9) as stream:
        events = [(index, type(event)) for index, event in stream]
    assert events == [
        (0, Started), (0, Delta), (0, Delta), (0, Completed),
        (1, Started), (1, Delta), (1, Completed),
    ]  # fmt: skip


def test_while_it_comes_back_a_coordinator_may_be_full_or_without_targets(
    open_client, fake, quick_retries
):
    client = open_client(fake.address, max_retries=0)
    fake.script(
        FakeReply("abc", lose_after=(1,)),
    )
    stream = client.stream("Hi", max_tokens=9)
    events = iter(stream)
    assert isinstance(next(events), Started)
    # The lost reply is kept for who resumes; two tries before it are refused.
    refusals = iter([UnavailableError("no target yet"), QueueFullError("full")])
    take = fake.take

    def refuse(message):
        error = next(refusals, None) if message.HasField("resume") else None
        if error is not None:
            raise error
        return take(message)

    fake.take = refuse
    assert stream.final().text == "abc"
    assert stream.final().num_resumes == 1


def test_resuming_can_be_switched_off(open_client, fake):
    client = open_client(fake.address, resume_timeout=0)
    fake.reply("abc", lose_after=2)
    stream = client.stream("Hi")
    with pytest.raises(UnavailableError, match="cannot reach the coordinator"):
        stream.final()
    assert stream.text == "ab"
    assert len(fake.requests) == 1


def test_a_coordinator_that_stays_away_is_given_up(open_client, quick_retries):
    with FakeCoordinator() as fake:
        client = open_client(fake.address, resume_timeout=0.3)
        fake.reply("x" * 500, delay_seconds=0.05)
        stream = client.stream("Hi")
        next(iter(stream.text_deltas()))
    start = time.perf_counter()
    with pytest.raises(UnavailableError):
        stream.final()
    assert time.perf_counter() - start < 10


def test_a_final_error_in_place_of_the_rest_is_not_retried(client, fake, quick_retries):
    fake.script(FakeReply("abc", error=InvalidRequestError("odd"), lose_after=(3,)))
    with pytest.raises(InvalidRequestError):
        client.generate("Hi")
    assert len(fake.requests) == 2


def test_a_stopped_coordinator_and_its_successor_are_one_to_the_client(open_client, quick_retries):
    """Stopped by its own will: calls are cut by the server, with a GOAWAY."""
    text = "x" * 4000  # never at its end before the stop
    with contextlib.ExitStack() as stack:
        with FakeCoordinator() as first:
            client = open_client(first.address)
            first.reply(text, delay_seconds=0.01)
            stream = client.stream("Hi", max_tokens=4000)
            deltas = stream.text_deltas()
            for _ in range(5):
                next(deltas)
            port = int(first.address.rpartition(":")[2])
        second = stack.enter_context(FakeCoordinator(port=port))
        received = len(stream.text)
        second.reply("y" * 3)
        result = stream.final()
        (resumed,) = second.requests
    num_seen = len(resumed.resume.token_ids)
    assert num_seen >= received
    assert result.text == "x" * num_seen + "yyy"
    assert result.usage.num_generated_tokens == num_seen + 3


def test_cancelling_ends_the_wait_for_a_lost_coordinator(open_client, fake, monkeypatch):
    monkeypatch.setattr("exspec.client.attempts.FIRST_BACKOFF_SECONDS", 30)
    monkeypatch.setattr("exspec.client.attempts.MAX_RESUME_BACKOFF_SECONDS", 30)
    client = open_client(fake.address)
    fake.reply("abc", lose_after=1)
    stream = client.stream("Hi")
    threading.Timer(0.3, stream.cancel).start()
    start = time.perf_counter()
    with pytest.raises(RequestCancelledError):
        stream.final()
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_closing_the_client_ends_running_calls_with_our_error(open_client, fake, kind):
    client = open_client(fake.address)
    fake.reply("x" * 500, delay_seconds=0.05)
    if kind == "stream":
        call = client.stream("Hi", request_id="mine")
    else:
        call = client.stream_batch(["Hi"], request_id="mine")
    next(iter(call))
    closing = threading.Timer(0.3, lambda: close_only(client))
    closing.start()
    with pytest.raises(RequestCancelledError) as caught:
        call.final()
    assert caught.value.request_id == "mine"
    closing.join()


def test_closing_the_client_while_it_connects_is_our_error_too(open_client, silent_listener):
    client = open_client(silent_listener, connect_timeout=20)
    call = client.stream("Hi", request_id="mine")
    closing = threading.Timer(0.3, lambda: close_only(client))
    closing.start()
    with pytest.raises(RequestCancelledError) as caught:
        call.final()
    assert caught.value.request_id == "mine"
    closing.join()


def close_only(client) -> None:
    """Close it, but leave the event loop of the asynchronous face running."""
    if hasattr(client, "run"):
        client.run(client._client.close())
    else:
        client.close()
