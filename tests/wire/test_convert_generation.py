"""What clients send and are told: values survive the trip, what is not served is named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.generation import (
    ChatMessage,
    ChatPrompt,
    Completed,
    Delta,
    Failed,
    GenerationRequest,
    RequestTimings,
    SpeculationStats,
    Started,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from exspec.core.params import SamplingParams, SpeculationParams
from exspec.v1 import generation_pb2 as pb
from exspec.wire import convert_generation as convert
from exspec.wire.convert_prompt import prompt_from_message

U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(min_size=1, max_size=10)
IDS = st.lists(U32, max_size=5).map(tuple)
SECONDS = st.floats(0, 1e9, allow_nan=False)
PROMPTS = (
    st.builds(TextPrompt, TEXT)
    | st.builds(TokenPrompt, st.lists(U32, min_size=1, max_size=5).map(tuple))
    | st.builds(
        ChatPrompt,
        st.lists(st.builds(ChatMessage, st.text(), st.text()), min_size=1, max_size=3).map(tuple),
    )
)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**31 - 1),
    stop=st.lists(TEXT, max_size=3).map(tuple),
    stop_token_ids=IDS,
    ignore_eos=st.booleans(),
)
REQUESTS = st.builds(
    GenerationRequest,
    PROMPTS,
    SAMPLING,
    st.builds(SpeculationParams, st.none() | st.integers(0, 64)),
    st.text(max_size=128),
    st.text(max_size=8),
    priority=st.integers(-1000, 1000),
)
EVENTS = (
    st.builds(Started, TEXT, st.text(), U32)
    | st.builds(Delta, st.text(), IDS)
    | st.builds(
        Completed,
        st.sampled_from(FinishReason),
        st.builds(Usage, U32, U32),
        st.builds(SpeculationStats, U32, U32, U32),
        st.builds(RequestTimings, SECONDS, SECONDS, SECONDS),
        st.text(),
    )
)


def _through(message):
    return type(message).FromString(message.SerializeToString())


@given(REQUESTS)
def test_requests_survive(request):
    message = _through(convert.request_to_message(request))
    assert convert.request_from_message(message) == request


@given(EVENTS, U32)
def test_events_survive(event, index):
    assert convert.event_from_message(_through(convert.event_to_message(event))) == event
    message = _through(convert.batch_event_to_message(index, event))
    assert (message.index, convert.batch_event_from_message(message)) == (index, event)


def test_a_request_without_max_tokens_says_so():
    request = GenerationRequest(TextPrompt("x"), has_max_tokens=False)
    message = _through(convert.request_to_message(request))
    assert not message.sampling.HasField("max_tokens")
    assert convert.request_from_message(message) == request


@pytest.mark.parametrize(
    "error",
    [
        errors.ContextLengthError("too long", field="prompt"),
        errors.QueueFullError("full", retry_after_seconds=2.5),
        errors.PeerError("a worker"),
        errors.InternalError("a bug"),
    ],
)
def test_the_error_of_one_prompt_survives(error):
    message = _through(convert.batch_event_to_message(3, Failed(error)))
    event = convert.batch_event_from_message(message)
    assert isinstance(event, Failed)
    assert type(event.error) is type(error)
    assert event.error.message == error.message
    for name in ("field", "retry_after_seconds"):
        assert getattr(event.error, name, None) == getattr(error, name, None)


def _request(**sampling) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=pb.Prompt(text="x"), sampling=pb.SamplingParams(**sampling))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (_request(temperature=0.7), "temperature"),
        (_request(temperature=math.nan), "temperature"),
        (_request(temperature=math.inf), "temperature"),
        (_request(top_p=0.9), "top_p"),
        (_request(top_p=math.nan), "top_p"),
        (_request(top_k=1), "top_k"),
        (_request(max_tokens=0), "max_tokens"),
        (_request(max_tokens=-3), "max_tokens"),
        (_request(stop=["x"] * 65), "stop"),
        (_request(stop=["x" * 257]), "stop"),
        (_request(stop=[""]), "stop"),
        (_request(stop_token_ids=range(1025)), "stop_token_ids"),
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(prompt=pb.Prompt(text="")), "prompt"),
        (pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds())), "prompt"),
        (pb.GenerateRequest(prompt=pb.Prompt(chat=pb.Chat())), "prompt"),
        (pb.GenerateRequest(prompt=pb.Prompt(text="x"), request_id="r" * 129), "request_id"),
        (
            pb.GenerateRequest(
                prompt=pb.Prompt(text="x"),
                speculation=pb.SpeculationParams(num_speculative_tokens=65),
            ),
            "num_speculative_tokens",
        ),
        (pb.GenerateRequest(prompt=pb.Prompt(text="x"), priority=1001), "priority"),
        (pb.GenerateRequest(prompt=pb.Prompt(text="x"), priority=-1001), "priority"),
    ],
)
def test_what_is_out_of_bounds_is_named(message, field):
    with pytest.raises(errors.InvalidRequestError) as caught:
        convert.request_from_message(message)
    assert caught.value.field == field


def test_parameters_that_say_greedy_are_served():
    message = _request(temperature=0, top_p=1, top_k=0, seed=7, max_tokens=1, stop=["x" * 256] * 64)
    request = convert.request_from_message(message)
    assert request.sampling == SamplingParams(max_tokens=1, stop=("x" * 256,) * 64)


@pytest.mark.parametrize("num_prompts", [0, 1025])
def test_a_batch_has_a_bounded_number_of_prompts(num_prompts):
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * num_prompts)
    with pytest.raises(errors.InvalidRequestError) as caught:
        convert.check_batch(batch)
    assert caught.value.field == "prompts"


def test_a_batch_id_leaves_room_for_the_ids_of_its_prompts():
    """Else every prompt would be refused for an id that its caller did not write."""
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * 11, request_id="r" * 126)
    with pytest.raises(errors.InvalidRequestError) as caught:
        convert.check_batch(batch)
    assert caught.value.field == "request_id"
    batch.request_id = "r" * 125
    convert.check_batch(batch)
    assert convert.request_from_message(convert.batch_item(batch, 10)).request_id.endswith("-10")


def test_the_priority_of_a_batch_is_that_of_its_prompts():
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * 2, priority=-3)
    assert convert.request_from_message(convert.batch_item(batch, 1)).priority == -3


def test_events_that_are_not_known_are_protocol_errors():
    with pytest.raises(errors.ProtocolError):
        convert.event_from_message(pb.GenerateResponse())
    with pytest.raises(errors.ProtocolError):
        convert.batch_event_from_message(pb.GenerateBatchResponse())
    with pytest.raises(errors.ProtocolError, match="finish_reason"):
        convert.event_from_message(pb.GenerateResponse(completed=pb.GenerationCompleted()))


def test_a_conversation_is_bounded():
    messages = [pb.ChatMessage(role="user", content="x")] * 4097
    with pytest.raises(errors.InvalidRequestError, match="4096") as caught:
        prompt_from_message(pb.Prompt(chat=pb.Chat(messages=messages)))
    assert caught.value.field == "prompt"


def test_the_error_of_a_prompt_does_not_repeat_a_long_message():
    """Every prompt of a batch would carry it."""
    error = errors.ModelNotFoundError("m" * 1_000_000)
    message = convert.batch_event_to_message(0, Failed(error))
    assert message.ByteSize() < 10_000
