"""What clients send and are told: values survive the trip, what is not served is named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.choosing import derive_seed
from exspec.core.generation import (
    ChatMessage,
    ChatPrompt,
    Completed,
    Delta,
    Failed,
    GenerationRequest,
    RequestTimings,
    Resume,
    SpeculationStats,
    Started,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from exspec.core.params import SamplingParams, SpeculationParams
from exspec.v1 import generation_pb2 as pb
from exspec.v1.common_pb2 import GRAMMAR_KIND_REGEX, Grammar, TokenSequence, TokenValue
from exspec.wire import convert_generation as convert
from exspec.wire.convert_prompt import prompt_from_message
from tests.wire.sampling_strategies import IDS, LOGPROBS, SAMPLING, TEXT, U32

SECONDS = st.floats(0, 1e9, allow_nan=False)
PROMPTS = (
    st.builds(TextPrompt, TEXT)
    | st.builds(TokenPrompt, st.lists(U32, min_size=1, max_size=5).map(tuple))
    | st.builds(
        ChatPrompt,
        st.lists(st.builds(ChatMessage, st.text(), st.text()), min_size=1, max_size=3).map(tuple),
    )
)
SEEDS = st.integers(0, 2**64 - 1)
RESUMES = st.builds(
    Resume, IDS, TEXT, st.integers(0, 2**31 - 1), st.binary(max_size=4), st.none() | SEEDS
)
REQUESTS = st.builds(
    GenerationRequest,
    PROMPTS,
    SAMPLING,
    st.builds(SpeculationParams, st.none() | st.integers(0, 64)),
    st.text(max_size=128),
    st.text(max_size=8),
    priority=st.integers(-1000, 1000),
    resume=st.none() | RESUMES,
)
EVENTS = (
    st.builds(Started, TEXT, st.text(), U32, TEXT, U32, st.binary(max_size=4), SEEDS)
    | st.builds(Delta, st.text(), IDS, LOGPROBS, LOGPROBS)
    | st.builds(
        Completed,
        st.sampled_from(FinishReason),
        st.builds(Usage, U32, U32),
        st.builds(SpeculationStats, U32, U32, U32, U32, IDS, IDS, U32, U32),
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
        (_request(temperature=-0.1), "temperature"),
        (_request(temperature=1e-9), "temperature"),
        (_request(temperature=math.nan), "temperature"),
        (_request(temperature=math.inf), "temperature"),
        (_request(top_p=0), "top_p"),
        (_request(top_p=1.1), "top_p"),
        (_request(top_p=math.nan), "top_p"),
        (_request(top_k=-2), "top_k"),
        (_request(min_p=math.nan), "min_p"),
        (_request(typical_p=0), "typical_p"),
        (_request(repetition_penalty=0), "repetition_penalty"),
        (_request(repetition_penalty=math.nan), "repetition_penalty"),
        (_request(presence_penalty=math.nan), "presence_penalty"),
        (_request(frequency_penalty=2.5), "frequency_penalty"),
        (_request(logit_bias=[TokenValue(token_id=1, value=math.nan)]), "logit_bias"),
        (_request(logit_bias=[TokenValue(token_id=1)] * 2), "logit_bias"),
        (_request(logit_bias=[TokenValue(token_id=i) for i in range(1025)]), "logit_bias"),
        (_request(min_tokens=6, max_tokens=5), "min_tokens"),
        (_request(logprobs=21), "logprobs"),
        (_request(prompt_logprobs=21), "prompt_logprobs"),
        (_request(bad_words=[""]), "bad_words"),
        (_request(bad_words=["x"] * 1025), "bad_words"),
        (_request(bad_words_ids=[TokenSequence()]), "bad_words_ids"),
        (_request(allowed_token_ids=[1], banned_token_ids=[1, 2]), "banned_token_ids"),
        (_request(structured=Grammar()), "structured"),
        (_request(structured=Grammar(kind=77, text="x")), "structured"),
        (_request(structured=Grammar(kind=GRAMMAR_KIND_REGEX)), "structured"),
        (
            _request(structured=Grammar(kind=GRAMMAR_KIND_REGEX, text="x"), ignore_eos=True),
            "ignore_eos",
        ),
        (_request(max_tokens=0), "max_tokens"),
        (_request(max_tokens=-3), "max_tokens"),
        (_request(stop=["x"] * 65), "stop"),
        (_request(stop=["x"] * 10_000), "stop"),
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


def test_what_is_stated_is_kept_apart_from_what_is_left_out():
    """A stated zero is no model's default, and a default is no stated zero."""
    stated = _request(temperature=0, top_p=1, top_k=0, min_p=0, seed=0, logprobs=0)
    assert convert.request_from_message(stated).sampling == SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, logprobs=0
    )
    assert convert.request_from_message(_request()).sampling == SamplingParams()


@pytest.mark.parametrize("num_prompts", [0, 1025])
def test_a_batch_has_a_bounded_number_of_prompts(num_prompts):
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * num_prompts)
    with pytest.raises(errors.InvalidRequestError) as caught:
        convert.check_batch(batch)
    assert caught.value.field == "prompts"


def test_completions_and_prompts_are_bounded_together():
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * 9, n=128)
    with pytest.raises(errors.InvalidRequestError, match="1024, got 9 times 128") as caught:
        convert.check_batch(batch)
    assert caught.value.field == "n"
    del batch.prompts[8:]
    convert.check_batch(batch)
    batch.n = 129
    with pytest.raises(errors.InvalidRequestError, match="n must be 1 to 128") as caught:
        convert.check_batch(batch)
    assert caught.value.field == "n"


def test_sequences_of_a_batch_are_counted_by_prompt_and_seeds_derived_by_them():
    batch = pb.GenerateBatchRequest(
        prompts=[pb.Prompt(text="a"), pb.Prompt(text="b")],
        n=3,
        request_id="r",
        sampling=pb.SamplingParams(seed=5),
        resumes=[pb.Resume(model_fingerprint="f", max_tokens=i) for i in range(6)],
    )
    convert.check_batch(batch)
    assert convert.num_sequences(batch) == 6
    requests = [convert.request_from_message(convert.batch_item(batch, i)) for i in range(6)]
    assert [r.prompt for r in requests] == [TextPrompt("a")] * 3 + [TextPrompt("b")] * 3
    assert [r.request_id for r in requests] == [f"r-{i}" for i in range(6)]
    assert [r.sampling.seed for r in requests] == [derive_seed(5, i) for i in range(6)]
    assert [r.resume.max_tokens for r in requests if r.resume] == list(range(6))
    batch.sampling.ClearField("seed")
    assert convert.request_from_message(convert.batch_item(batch, 4)).sampling.seed is None
    del batch.resumes[2:]
    with pytest.raises(errors.InvalidRequestError, match="one per sequence") as caught:
        convert.check_batch(batch)
    assert caught.value.field == "resumes"


def test_a_long_list_is_not_sent_for_every_sequence_of_a_large_batch():
    batch = pb.GenerateBatchRequest(prompts=[pb.Prompt(text="x")] * 64, n=16)
    batch.sampling.allowed_token_ids.extend(range(4096))
    convert.check_batch(batch)
    batch.sampling.allowed_token_ids.append(4096)
    with pytest.raises(errors.InvalidRequestError, match="fewer prompts") as caught:
        convert.check_batch(batch)
    assert caught.value.field == "allowed_token_ids"


def test_a_batch_may_not_ask_for_more_logprobs_of_prompts_than_can_be_held_unread():
    ids = pb.Prompt(token_ids=pb.TokenIds(ids=[7] * 4096))
    batch = pb.GenerateBatchRequest(prompts=[ids] * 64, n=4, sampling={"prompt_logprobs": 3})
    convert.check_batch(batch)
    for more in (pb.Prompt(text="x"), ids):
        longer = pb.GenerateBatchRequest(prompts=[more])
        longer.MergeFrom(batch)
        with pytest.raises(errors.InvalidRequestError, match="fewer prompts") as caught:
            convert.check_batch(longer)
        assert caught.value.field == "prompt_logprobs"
        longer.sampling.ClearField("prompt_logprobs")
        convert.check_batch(longer)


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
