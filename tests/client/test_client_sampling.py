"""Sampling through both clients: what is asked for travels, what is reported comes back."""

from __future__ import annotations

import math

import pytest

from exspec import BatchResult, Delta, ProtocolError, QueueFullError, Started, TokenLogprobs
from exspec.client.courses import BatchCourse, GenerationCourse
from exspec.client.fake import FakeReply
from exspec.client.fake_answers import FAKE_SEED, logprobs_of
from exspec.client.options import GenerateOptions, Options
from exspec.client.requests import plan_batch, plan_generate
from exspec.core.choosing import derive_seed
from exspec.core.generation import RequestTimings, SpeculationStats
from exspec.v1 import common_pb2
from exspec.v1 import generation_pb2 as pb
from tests.client.test_client_options import GIVEN, SCHEMA


@pytest.mark.parametrize(
    "structured", [{"json_schema": SCHEMA}, {"regex": "a+"}, {"grammar": "start: A"}]
)
def test_all_parameters_travel(client, fake, structured):
    options = {**GIVEN, "ignore_eos": False, **structured}
    client.generate("Hi", **options)
    client.generate_batch(["Hi"], **options)
    asked = Options(options, GenerateOptions).sampling()
    assert [request.sampling for request in fake.requests] == [asked, asked]


def test_speculation_may_be_switched_off(client, fake):
    client.generate("Hi", speculate=False)
    client.generate("Hi", speculate=True)
    numbers = [request.speculation.num_speculative_tokens for request in fake.requests]
    assert numbers == [0, None]


def test_the_seed_is_reported_given_or_drawn(client):
    assert client.generate("Hi", seed=7).seed == 7
    assert client.generate("Hi", seed=0).seed == 0
    assert client.generate("Hi", temperature=1).seed == FAKE_SEED
    assert client.generate("Hi").seed == 0
    with client.stream("Hi", seed=2**64 - 1) as stream:
        (started,) = (event for event in stream if isinstance(event, Started))
    assert started.seed == 2**64 - 1


def test_logprobs_come_one_per_token(client, fake):
    fake.reply("aé")
    result = client.generate("Hey", logprobs=2, prompt_logprobs=0, temperature=1)
    assert (
        [one.token_id for one in result.logprobs] == list(result.token_ids) == list("aé".encode())
    )
    first = result.logprobs[0]
    assert isinstance(first, TokenLogprobs)
    assert first.logprob == pytest.approx(math.log(0.5))
    assert first.top == ((97, -math.log(2)), (98, -2 * math.log(2)))
    assert [one.token_id for one in result.prompt_logprobs] == list(b"ey")
    assert not any(one.top for one in result.prompt_logprobs)
    plain = client.generate("Hey")
    assert (plain.logprobs, plain.prompt_logprobs) == ((), ())


def test_deltas_carry_their_logprobs(client, fake):
    fake.reply("ab")
    with client.stream("Hey", logprobs=1, prompt_logprobs=1) as stream:
        deltas = [event for event in stream if isinstance(event, Delta)]
    assert [[one.token_id for one in delta.logprobs] for delta in deltas] == [[97], [98]]
    assert [len(delta.prompt_logprobs) for delta in deltas] == [2, 0]


@pytest.mark.parametrize("places", [(0,), (1,), (2, 3)])
def test_a_resumed_generation_keeps_seed_and_logprobs(client, fake, quick_retries, places):
    options = {"logprobs": 1, "prompt_logprobs": 1, "temperature": 1.0}
    fake.script(FakeReply("abcd", lose_after=places))
    result = client.generate("Hey", **options)
    assert result.logprobs == logprobs_of(b"abcd", 1)
    assert result.prompt_logprobs == logprobs_of(b"ey", 1)
    assert result.num_resumes == len(places)
    assert result.seed == FAKE_SEED
    assert [request.resume.seed for request in fake.requests[1:]] == [FAKE_SEED] * len(places)


def test_logprobs_of_the_prompt_are_not_asked_for_twice():
    course = GenerationCourse(plan_generate("Hey", {"prompt_logprobs": 0}))
    started = pb.GenerationStarted(model_fingerprint="f")
    course.take(pb.GenerateResponse(started=started))
    assert course.request().sampling.HasField("prompt_logprobs")
    message = common_pb2.TokenLogprobs(token_id=1, logprob=-1)
    delta = pb.GenerationDelta(token_ids=[5], prompt_logprobs=[message])
    course.take(pb.GenerateResponse(delta=delta))
    assert not course.request().sampling.HasField("prompt_logprobs")


def test_logprobs_that_do_not_fit_the_tokens_are_a_protocol_error():
    course = GenerationCourse(plan_generate("Hey", {"logprobs": 0}))
    course.take(pb.GenerateResponse(started=pb.GenerationStarted()))
    message = common_pb2.TokenLogprobs(token_id=1, logprob=-1)
    delta = pb.GenerationDelta(token_ids=[5, 6], logprobs=[message])
    with pytest.raises(ProtocolError, match="1 logprobs came for 2 tokens"):
        course.take(pb.GenerateResponse(delta=delta))


def test_several_sequences_of_each_prompt_come_prompt_by_prompt(client, fake):
    fake.script(*(FakeReply(text) for text in ("a", "b", "c")))
    fake.fail(QueueFullError("full"))
    batch = client.generate_batch(["x", "y"], n=2, seed=5, request_id="mine")
    assert isinstance(batch, BatchResult)
    assert (len(batch), batch.n, batch.num_prompts) == (4, 2, 2)
    assert [result.text for result in batch[:3]] == ["a", "b", "c"]
    assert batch.of_prompt(0) == batch.results[:2]
    assert batch.of_prompt(-1) == batch.results[2:]
    with pytest.raises(IndexError):
        batch.of_prompt(2)
    assert isinstance(batch[3], QueueFullError)
    assert [result.seed for result in batch[:3]] == [derive_seed(5, i) for i in range(3)]
    assert [request.prompt.text for request in fake.requests] == ["x", "x", "y", "y"]
    assert [request.request_id for request in fake.requests] == [f"mine-{i}" for i in range(4)]


def test_a_resumed_batch_keeps_its_order_and_its_seeds(client, fake, quick_retries):
    fake.script(FakeReply("a"), FakeReply("bcd", lose_after=(1,)))
    batch = client.generate_batch(["x", "y"], n=2, seed=5, max_tokens=9)
    assert [result.text for result in batch] == ["a", "bcd", "ok", "ok"]
    assert [result.seed for result in batch] == [derive_seed(5, i) for i in range(4)]
    assert [request.prompt.text for request in fake.requests[2:]] == ["x", "y", "y"]


def test_sequences_that_have_not_begun_are_asked_for_with_the_seeds_they_had():
    course = BatchCourse(plan_batch(["x", "y"], {"n": 2, "seed": 5}))
    error = pb.GenerationError(reason="InternalError")
    course.take(pb.GenerateBatchResponse(index=0, error=error))
    request = course.request()
    assert (request.n, len(request.prompts)) == (1, 3)
    assert [resume.seed for resume in request.resumes] == [derive_seed(5, i) for i in (1, 2, 3)]
    course = BatchCourse(plan_batch(["x", "y"], {}))
    course.take(pb.GenerateBatchResponse(index=0, error=error))
    assert list(course.request().resumes) == [pb.Resume()]


def test_statistics_and_timings_come_with_the_result(client, fake):
    fake.script(
        FakeReply(
            "abc",
            speculation=SpeculationStats(2, 6, 1, 3, (2, 2, 2), (1, 0, 0)),
            timings=RequestTimings(1.0, 3.0, 7.0),
        )
    )
    result = client.generate("Hi")
    assert result.speculation == SpeculationStats(2, 6, 1, 3, (2, 2, 2), (1, 0, 0))
    assert (result.timings.prefill_seconds, result.timings.decode_seconds) == (2.0, 4.0)
    assert result.seconds_per_token == 2.0


def test_time_per_token_of_a_resumed_generation_counts_its_last_part(client, fake, quick_retries):
    timings = RequestTimings(0.0, 1.0, 7.0)
    fake.script(FakeReply("abcdef", lose_after=(2,), timings=timings))
    assert client.generate("Hi").seconds_per_token == 2.0
