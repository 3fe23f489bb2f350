"""A coordinator that is told to stop, once and twice."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from coordinator.__main__ import serve
from coordinator.settings import CoordinatorSettings
from exspec.v1 import generation_pb2 as pb
from exspec.v1 import generation_pb2_grpc
from exspec.wire import process
from exspec.wire.channel import open_aio_channel
from exspec.wire.process import StopSignals


@pytest.fixture
async def waiting(monkeypatch):
    """Signals, a call that waits for a target which never comes, and the coordinator's task."""
    signals = StopSignals()
    monkeypatch.setattr(process, "stop_signals", lambda: signals)
    bound = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(process, "write_port_file", lambda _, address: bound.set_result(address))
    settings = CoordinatorSettings(
        _cli_parse_args=[], port=0, grace_seconds=600.0, unavailable_seconds=600.0
    )
    task = asyncio.create_task(serve(settings, None))
    address = await asyncio.wait_for(bound, 20)
    async with open_aio_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        await stub.ListModels(pb.ListModelsRequest())
        call = stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x")))
        yield signals, asyncio.create_task(call.code()), task, stub
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_second_signal_ends_what_the_first_left_running(waiting):
    signals, reading, task, stub = waiting
    signals.note()
    while await stub.ListModels(pb.ListModelsRequest()).code() is grpc.StatusCode.OK:
        pass  # until nothing new is taken
    assert not reading.done()
    assert not task.done()
    signals.note()
    await asyncio.wait_for(task, 10)
    assert await reading is not grpc.StatusCode.OK
