"""Deadlines, and how many requests may wait or run: per queue, per client, before any target."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import grpc.aio
import pytest
from coordinator_world import World, check, request, under_way, world

from coordinator.callers import Caller, ClientPlaces
from exspec.core import errors
from exspec.runtime.clock import monotonic
from exspec.v1 import generation_pb2 as pb
from exspec.wire.status import from_call


async def _serve(made: World, seconds: float) -> list[object]:
    """Events of a request whose caller waits that long; its error last."""
    events: list[object] = []
    caller = Caller("someone", monotonic() + seconds)
    try:
        async for event in made.parts.service.generate(request(max_tokens=9000), caller):
            events.append(event)  # noqa: PERF401 - kept when it fails
    except errors.ExspecError as error:
        events.append(error)
    return events


async def test_a_request_that_comes_after_its_deadline_is_not_started():
    async with world() as made:
        target = await made.target()
        (error,) = await _serve(made, -1)
        assert isinstance(error, errors.DeadlineExceededError)
        assert error.request_id
        assert target.runner.passes == []


async def test_a_request_leaves_the_queue_at_its_deadline():
    async with world() as made:
        target = await made.target(num_slots=1, capacity=10_000)
        running = await under_way(made, request(max_tokens=9000))
        _started, error = await _serve(made, 0.2)
        assert isinstance(error, errors.DeadlineExceededError)
        await made.bell.until(lambda: made.driver.scheduler.num_waiting == 0)
        assert target.sessions.num_sequences == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_running_request_stops_at_its_deadline_and_frees_its_workers():
    async with world() as made:
        target = await made.target(capacity=10_000)
        draft = await made.draft(capacity=10_000)
        *events, error = await _serve(made, 0.4)
        assert len(events) > 2
        assert isinstance(error, errors.DeadlineExceededError)
        await made.settle()
        assert (target.sessions.num_sequences, draft.sessions.num_sequences) == (0, 0)


async def test_the_deadline_bounds_the_wait_for_the_first_target():
    async with world(unavailable_seconds=60) as made:
        (error,) = await _serve(made, 0.1)
        assert isinstance(error, errors.DeadlineExceededError)


async def test_the_deadline_of_the_call_is_the_requests():
    async with world() as made:
        await made.target(capacity=10_000)
        call = made.stub.Generate(
            pb.GenerateRequest(
                prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[5])),
                sampling=pb.SamplingParams(max_tokens=9000),
            ),
            timeout=0.4,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_waiting_for_the_first_target_is_waiting():
    async with world(max_waiting=2) as made:
        asked = [asyncio.create_task(made.generate()) for _ in range(2)]
        while made.parts.service._num_without_target < 2:  # noqa: ASYNC110 - nobody rings yet
            await asyncio.sleep(0.01)
        refused = await made.generate()
        assert isinstance(refused.error, errors.QueueFullError)
        assert refused.error.retry_after_seconds > 0
        await made.target()
        for task in asked:
            check(await task)
        check(await made.generate())


async def test_one_client_has_a_bound_of_its_own():
    async with world(max_client_requests=2) as made:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        asked = [asyncio.create_task(made.generate()) for _ in range(2)]
        await made.bell.until(lambda: len(made.driver.ledger) == 2)
        refused = await made.generate()
        assert isinstance(refused.error, errors.TooManyRequestsError)
        assert refused.error.retry_after_seconds > 0
        assert "127.0.0.1" in refused.error.message
        target.runner.gate.set()
        for task in asked:
            check(await task)
        check(await made.generate())
        assert len(made.parts.service._places) == 0


async def test_every_prompt_of_a_batch_counts():
    async with world(max_client_requests=3) as made:
        target = await made.target(capacity=10_000)
        running = await under_way(made, request(max_tokens=9000))
        for num_prompts, error in (
            (3, errors.TooManyRequestsError),
            (4, errors.InvalidRequestError),
        ):
            assert type(await _batch_error(made, num_prompts)) is error
        assert await _batch_error(made, 2) is None
        assert target.sessions.num_sequences >= 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _batch_error(made: World, num_prompts: int) -> errors.ExspecError | None:
    prompts = [pb.Prompt(token_ids=pb.TokenIds(ids=[5 + i])) for i in range(num_prompts)]
    batch = pb.GenerateBatchRequest(prompts=prompts, sampling=pb.SamplingParams(max_tokens=3))
    try:
        async for message in made.stub.GenerateBatch(batch):
            assert not message.HasField("error")
    except grpc.aio.AioRpcError as error:
        return from_call(error)
    return None


def test_places_are_given_back_one_by_one_and_all_at_the_end():
    places = ClientPlaces(3)
    with places.taken("a", 3) as taken, places.taken("b", 1):
        taken.release()
        with places.taken("a", 1), pytest.raises(errors.TooManyRequestsError):
            places.taken("a", 1).__enter__()
    assert len(places) == 0
    assert places._counts == Counter()
    with ClientPlaces(None).taken("a", 10_000):
        pass


@pytest.mark.parametrize(
    ("prompt", "bound"),
    [
        (pb.Prompt(text="x" * (1024 * 1024)), "bytes"),
        (
            pb.Prompt(
                chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * 600)] * 2000)
            ),
            "bytes",
        ),
        (pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user")] * 5000)), "messages"),
        (pb.Prompt(token_ids=pb.TokenIds(ids=[1] * 1_100_000)), "token ids"),
        (pb.Prompt(token_ids=pb.TokenIds(ids=[1] * 1000)), "context"),
    ],
)
async def test_a_prompt_that_is_too_large_is_refused_before_it_is_tokenized(prompt, bound):
    async with world() as made:
        await made.target()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in made.stub.Generate(pb.GenerateRequest(prompt=prompt)):
                pass
        error = from_call(caught.value)
        assert isinstance(error, errors.InvalidRequestError)
        assert error.field == "prompt"
        assert bound in error.message


async def test_a_list_to_be_decoded_is_bounded():
    async with world() as made:
        await made.target()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await made.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1] * 1_100_000))
        assert from_call(caught.value).field == "token_ids"
