"""What only an asyncio client does: tasks that are cancelled, generations side by side."""

from __future__ import annotations

import asyncio

import pytest

from exspec import AsyncClient, Delta, RequestCancelledError
from exspec.client.fake import FakeReply


async def test_cancelling_a_task_cancels_its_generation(fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    async with AsyncClient(fake.address) as client:
        task = asyncio.create_task(client.generate("Hi"))
        while not fake.requests:  # noqa: ASYNC110 - the fake lives in another thread
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(fake.wait_cancelled)
        assert (await client.generate("Hi")).text == "ok"


async def test_cancelling_a_stream_is_not_cancelling_the_task(fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    async with AsyncClient(fake.address) as client, client.stream("Hi") as stream:
        events = aiter(stream)
        while not isinstance(await anext(events), Delta):
            pass
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            await anext(events)


async def test_generations_run_side_by_side(fake):
    replies = [FakeReply(f"answer {number}", delay_seconds=0.02) for number in range(6)]
    fake.script(*replies)
    async with AsyncClient(fake.address) as client:
        results = await asyncio.gather(*(client.generate("Hi") for _ in range(6)))
    assert {result.text for result in results} == {reply.text for reply in replies}


async def test_a_timeout_around_a_generation_cancels_it(fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    async with AsyncClient(fake.address) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.generate("Hi")
        assert await asyncio.to_thread(fake.wait_cancelled)
