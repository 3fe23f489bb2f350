"""What a client does not read costs little, and not for long."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from coordinator_world import request, world
from toy import continuation

from coordinator.delivery import Mailbox, merge, write
from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.choosing import TokenLogprobs
from exspec.core.generation import Completed, Delta, Usage
from exspec.v1 import generation_pb2 as pb
from exspec.wire import convert_generation as convert
from exspec.wire.status import from_call

END = Completed(FinishReason.LENGTH, Usage(1, 3))
NARROW = (("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0))
"""A client with the smallest window."""


async def test_unread_deltas_become_one():
    mailbox = Mailbox()
    mailbox.put(Delta("a", (1,)))
    assert await mailbox.take() == Delta("a", (1,))
    for i in range(1000):
        mailbox.put(Delta("b", (i,)))
    mailbox.put(END)
    assert await mailbox.take() == Delta("b" * 1000, tuple(range(1000)))
    assert await mailbox.take() == END


async def test_logprobs_of_unread_deltas_are_kept_in_order():
    scores = [TokenLogprobs(i, -i / 2) for i in range(4)]
    mailbox = Mailbox()
    mailbox.put(Delta("a", (1,), tuple(scores[1:2]), tuple(scores[:1])))
    mailbox.put(Delta("bc", (2, 3), tuple(scores[2:])))
    assert await mailbox.take() == Delta("abc", (1, 2, 3), tuple(scores[1:]), tuple(scores[:1]))
    mailbox.put(Delta("d", (1,), tuple(scores[1:2])))
    assert await mailbox.take() == Delta("d", (1,), tuple(scores[1:2]))


async def test_a_reader_waits_for_what_comes():
    mailbox = Mailbox()
    reading = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    mailbox.put(Delta("", (7,)))
    assert await reading == Delta("", (7,))


async def _numbers(made: list[int], number: int, size: int):
    for _ in range(size):
        made[number] += 1
        yield number


async def test_streams_read_as_one_run_no_further_ahead_than_one_event():
    made = [0] * 50
    merged = merge([_numbers(made, i, 4) for i in range(50)])
    seen = [await anext(merged)]
    await asyncio.sleep(0.01)
    assert made == [1] * 50
    seen += [item async for item in merged]
    assert sorted(seen) == sorted((i, i) for i in range(50) for _ in range(4))


async def test_streams_that_are_not_read_to_the_end_are_closed():
    closed: list[int] = []

    async def endless(number: int):
        try:
            while True:
                yield number
        finally:
            closed.append(number)

    merged = merge([endless(i) for i in range(5)])
    for _ in range(12):
        await anext(merged)
    await merged.aclose()
    assert sorted(closed) == list(range(5))


class Stuck:
    """A call nobody reads."""

    async def write(self, message: object) -> None:
        await asyncio.Event().wait()


async def test_a_write_that_nobody_takes_is_given_up():
    with pytest.raises(errors.SlowReaderError, match="slow-reader-seconds") as caught:
        await write(Stuck(), "x", 0.01)
    assert caught.value.retry_after_seconds > 0


def _narrow(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=NARROW)


async def test_a_client_that_stops_reading_is_dropped_and_its_workers_are_free():
    asked = convert.request_to_message(request(max_tokens=90_000))
    async with world(slow_reader_seconds=0.3) as made, _narrow(made.address) as channel:
        target = await made.target(capacity=100_000)
        call = type(made.stub)(channel).Generate(asked)
        assert (await call.read()).HasField("started")
        await made.bell.until(lambda: target.sessions.num_sequences)
        await made.settle()
        assert target.sessions.num_sequences == 0
        # When it reads on, it gets what was sent, and is told why there is no more.
        tokens: list[int] = []
        try:
            while True:
                tokens += (await call.read()).delta.token_ids
        except grpc.aio.AioRpcError as failure:
            error = from_call(failure)
        assert isinstance(error, errors.SlowReaderError)
        assert "--slow-reader-seconds" in error.message
        assert tuple(tokens) == continuation((11, 0, 2), len(tokens))


async def test_a_batch_that_is_not_read_is_dropped():
    batch = pb.GenerateBatchRequest(
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=[i + 5])) for i in range(6)],
        sampling=pb.SamplingParams(max_tokens=90_000),
    )
    async with world(slow_reader_seconds=0.3) as made, _narrow(made.address) as channel:
        target = await made.target(capacity=100_000)
        call = type(made.stub)(channel).GenerateBatch(batch)
        assert (await call.read()).HasField("started")
        await made.bell.until(lambda: target.sessions.num_sequences)
        await made.settle()
        call.cancel()


async def test_a_client_that_reads_slowly_gets_everything():
    asked = request(max_tokens=400)
    async with world(slow_reader_seconds=5) as made, _narrow(made.address) as channel:
        await made.target(capacity=500)
        call = type(made.stub)(channel).Generate(convert.request_to_message(asked))
        tokens: list[int] = []
        num_events = 0
        while (message := await call.read()) is not grpc.aio.EOF:
            tokens += message.delta.token_ids
            num_events += 1
            await asyncio.sleep(0.002)
        assert tuple(tokens) == continuation((11, 0, 2), 400)
        assert num_events > 2
