"""Generation through both clients: results, events, batches, cancelling."""

from __future__ import annotations

import time

import pytest

from exspec import (
    ChatMessage,
    Completed,
    Delta,
    ExspecError,
    FinishReason,
    GenerationResult,
    InvalidRequestError,
    ProtocolError,
    QueueFullError,
    RequestCancelledError,
    Started,
    WorkerLostError,
)
from exspec.client.fake import FakeReply
from exspec.core.generation import (
    ChatPrompt,
    Failed,
    SpeculationStats,
    TextPrompt,
    TokenPrompt,
)


def test_generate_returns_the_whole_answer(client, fake):
    fake.script(FakeReply("héllo", speculation=SpeculationStats(4, 12, 2)))
    result = client.generate("Hi", request_id="mine")
    assert isinstance(result, GenerationResult)
    assert (result.text, result.token_ids) == ("héllo", tuple("héllo".encode()))
    assert (result.request_id, result.model) == ("mine", "fake-model")
    assert result.finish_reason is FinishReason.STOP_TOKEN
    assert (result.usage.num_prompt_tokens, result.usage.num_generated_tokens) == (2, 6)
    assert result.speculation.acceptance_length == 1.5


def test_a_request_id_is_drawn_and_unique(client, fake):
    results = [client.generate("a"), client.generate("b")]
    drawn = [result.request_id for result in results]
    assert len(set(drawn)) == 2
    assert [request.request_id for request in fake.requests] == drawn
    assert all(name.startswith("req-") for name in drawn)


def test_all_keywords_travel(client, fake):
    client.generate(
        "Hi",
        max_tokens=7,
        stop=["one", "two"],
        stop_token_ids=(3, 4),
        ignore_eos=True,
        num_speculative_tokens=0,
        priority=-5,
        model="fake-model",
        request_id="all",
    )
    (request,) = fake.requests
    assert request.sampling.max_tokens == 7
    assert request.sampling.stop == ("one", "two")
    assert request.sampling.stop_token_ids == (3, 4)
    assert request.sampling.ignore_eos
    assert request.speculation.num_speculative_tokens == 0
    assert request.priority == -5
    assert (request.model, request.request_id) == ("fake-model", "all")
    assert request.has_max_tokens


def test_keywords_left_out_are_left_to_the_cluster(client, fake):
    client.generate("Hi")
    (request,) = fake.requests
    assert not request.has_max_tokens
    assert request.speculation.num_speculative_tokens is None
    assert request.sampling.stop == ()


def test_one_stop_string_is_not_taken_for_letters(client, fake):
    client.generate("Hi", stop="END")
    assert fake.requests[0].sampling.stop == ("END",)


@pytest.mark.parametrize(
    ("prompt", "received"),
    [
        ("text", TextPrompt("text")),
        ([1, 2, 3], TokenPrompt((1, 2, 3))),
        ((0,), TokenPrompt((0,))),
        ([{"role": "user", "content": "x"}], ChatPrompt((ChatMessage("user", "x"),))),
        ([ChatMessage("system", "y")], ChatPrompt((ChatMessage("system", "y"),))),
        (TokenPrompt((5,)), TokenPrompt((5,))),
    ],
)
def test_prompts_of_all_kinds(client, fake, prompt, received):
    client.generate(prompt)
    assert fake.requests[0].prompt == received


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        (5, {}, "prompt"),
        ([1, "a"], {}, "prompt"),
        ([1.5], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([2**32], {}, "prompt"),
        ([{"role": "user"}], {}, "prompt"),
        ([{"role": "user", "content": [1]}], {}, "prompt"),
        ([{"role": "user", "content": "a", "name": "b"}], {}, "prompt"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": -3}, "max_tokens"),
        ("x", {"max_tokens": 2**40}, "max_tokens"),
        ("x", {"stop": [""]}, "stop"),
        ("x", {"stop": "a" * 257}, "stop"),
        ("x", {"stop_token_ids": [-5]}, "stop_token_ids"),
        ("x", {"num_speculative_tokens": 65}, "num_speculative_tokens"),
        ("x", {"priority": 1001}, "priority"),
        ("x", {"request_id": "r" * 129}, "request_id"),
        ("\ud800", {}, ""),
    ],
)
def test_bad_requests_name_the_field_and_the_request(client, fake, prompt, options, field):
    with pytest.raises(InvalidRequestError) as caught:
        client.generate(prompt, **options)
    assert caught.value.field == field
    assert caught.value.request_id
    assert fake.requests == []


def test_an_unknown_keyword_is_a_type_error(client):
    with pytest.raises(TypeError, match="temprature"):
        client.generate("Hi", temprature=1)


def test_stream_gives_typed_events_in_order(client, fake):
    fake.reply("abc")
    with client.stream("Hi") as stream:
        events = list(stream)
        assert stream.final().text == "abc"
    assert isinstance(events[0], Started)
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert isinstance(events[-1], Completed)
    assert events[0].request_id == stream.request_id


def test_text_deltas_join_to_the_text(client, fake):
    fake.reply("one two")
    with client.stream("Hi") as stream:
        deltas = list(stream.text_deltas())
    assert "".join(deltas) == "one two"
    assert all(deltas)
    assert stream.final().text == stream.text == "one two"


def test_final_after_a_part_was_read_is_the_whole(client, fake):
    fake.reply("abcdef")
    with client.stream("Hi") as stream:
        for event in stream:
            if isinstance(event, Delta):
                break
        assert stream.final().text == "abcdef"
        assert stream.final().token_ids == tuple(b"abcdef")


def test_max_tokens_ends_by_length(client, fake):
    fake.reply("abcdef")
    result = client.generate("Hi", max_tokens=2)
    assert (result.text, result.finish_reason) == ("ab", FinishReason.LENGTH)


def test_leaving_a_stream_early_cancels_the_generation(client, fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    with client.stream("Hi") as stream:
        next(iter(stream.text_deltas()))
    assert fake.wait_cancelled()
    with pytest.raises(RequestCancelledError) as caught:
        stream.final()
    assert caught.value.request_id == stream.request_id
    assert stream.text.startswith("x")


def test_cancel_makes_the_reader_stop_with_an_error(client, fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    with client.stream("Hi") as stream:
        reader = stream.text_deltas()
        next(reader)
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            list(reader)
    assert fake.wait_cancelled()


def test_a_stream_never_read_sends_nothing(client, fake):
    with client.stream("Hi"):
        pass
    client.generate("other")
    assert [request.prompt for request in fake.requests] == [TextPrompt("other")]


def test_an_error_in_mid_stream_keeps_what_came_before(client, fake):
    fake.fail(WorkerLostError("the last target died"), after_text="so far")
    stream = client.stream("Hi")
    with pytest.raises(WorkerLostError, match="the last target died"):
        stream.final()
    assert stream.text == "so far"
    with pytest.raises(WorkerLostError):
        stream.final()
    assert len(fake.requests) == 1


def test_an_answer_without_an_end_is_a_protocol_error(client, fake, monkeypatch):
    monkeypatch.setattr("exspec.client.fake_answers.SingleAnswer.events", lambda *_: iter(()))
    with pytest.raises(ProtocolError, match="before the generation was complete"):
        client.generate("Hi")


def test_batch_results_are_in_the_order_of_the_prompts(client, fake):
    fake.script(FakeReply("a"), FakeReply("bb"), FakeReply("ccc"))
    prompts = ["1", [2], [{"role": "user", "content": "3"}]]
    results = client.generate_batch(prompts, max_tokens=9, priority=-1000)
    assert [result.text for result in results] == ["a", "bb", "ccc"]
    assert {request.sampling.max_tokens for request in fake.requests} == {9}
    assert {request.priority for request in fake.requests} == {-1000}


def test_a_failed_prompt_of_a_batch_fails_alone(client, fake):
    fake.script(
        FakeReply("a"),
        FakeReply(error=QueueFullError("full", retry_after_seconds=3)),
        FakeReply("part", error=InvalidRequestError("odd", field="prompt")),
        FakeReply("d"),
    )
    first, full, odd, last = client.generate_batch(list("wxyz"), request_id="batch")
    assert (first.text, last.text) == ("a", "d")
    assert (first.request_id, last.request_id) == ("batch-0", "batch-3")
    assert isinstance(full, QueueFullError)
    assert (full.retry_after_seconds, full.request_id) == (3, "batch-1")
    assert isinstance(odd, InvalidRequestError)
    assert (odd.field, odd.request_id) == ("prompt", "batch-2")


def test_batch_events_carry_the_index_of_their_prompt(client, fake):
    fake.script(FakeReply("a"), FakeReply(error=WorkerLostError("gone")))
    with client.stream_batch(["1", "2"]) as stream:
        events = [(index, type(event)) for index, event in stream]
    assert events == [(0, Started), (0, Delta), (0, Completed), (1, Failed)]


def test_a_call_that_dies_keeps_the_results_it_has(client, fake):
    fake.script(FakeReply("a"), FakeReply("b" * 100, delay_seconds=0.1))
    results = client.generate_batch(["1", "2"], timeout=0.6)
    assert results[0].text == "a"
    assert isinstance(results[1], ExspecError)


def test_leaving_a_batch_early_cancels_it(client, fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    with client.stream_batch(["1", "2"]) as stream:
        next(iter(stream))
    assert fake.wait_cancelled()


@pytest.mark.parametrize("prompts", [[], "text", ["ok"] * 1025])
def test_bad_batches_are_refused(client, prompts):
    with pytest.raises(InvalidRequestError) as caught:
        client.generate_batch(prompts)
    assert caught.value.field == "prompts"
    assert caught.value.request_id


def test_a_batch_with_a_priority_out_of_bounds_is_refused(client, fake):
    with pytest.raises(InvalidRequestError, match="-1000 to 1000, got 1001") as caught:
        client.generate_batch(["1"], priority=1001)
    assert caught.value.field == "priority"
    assert fake.requests == []


def test_an_empty_prompt_of_a_batch_fails_alone(client):
    results = client.generate_batch(["ok", "", []])
    assert [type(result) for result in results] == [
        GenerationResult,
        InvalidRequestError,
        InvalidRequestError,
    ]


def test_tokenize_detokenize_and_models(client):
    tokenized = client.tokenize("hé")
    assert tokenized.token_ids == tuple("hé".encode())
    assert client.detokenize(tokenized.token_ids) == "hé"
    (model,) = client.list_models()
    assert (model.name, model.max_length, model.stop_token_ids) == ("fake-model", 2048, (0,))
    with pytest.raises(InvalidRequestError):
        client.tokenize("")
    with pytest.raises(InvalidRequestError):
        client.detokenize([-1])


def test_many_generations_share_a_client(open_client, fake):
    client = open_client(fake.address)
    start = time.perf_counter()
    for number in range(50):
        assert client.generate(f"prompt {number}").text == "ok"
    assert time.perf_counter() - start < 5
