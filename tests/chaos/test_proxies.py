"""The proxies do to bytes and messages what they say, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib

import grpc.aio
import pytest

from tests.chaos.message_proxy import BrokenStreamError, Direction, MessageProxy
from tests.chaos.tcp_proxy import TcpProxy, Weather

VERIFY = "/exspec.v1.TargetService/Verify"


class _Echo(grpc.GenericRpcHandler):
    """Answers every message with itself."""

    def service(self, handler_call_details):
        async def stream(requests, context):
            async for message in requests:
                yield message

        async def call(request, context):
            return request

        if handler_call_details.method == VERIFY:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(call)


@contextlib.asynccontextmanager
async def echoing(tap):
    """A channel to an echo server behind a proxy."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    upstream = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with (
        MessageProxy(tap, upstream) as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        yield channel
    await server.stop(0)


def on(direction: Direction, fates: dict[bytes, tuple[float, ...]]):
    """A tap that knows what becomes of each message in one direction."""

    async def tap(method, way, message):
        fate = fates.get(message, (0.0,)) if way is direction else (0.0,)
        if fate == ("cut",):
            raise BrokenStreamError
        return fate

    return tap


async def echoed(channel, *messages: bytes, num: int) -> list[bytes]:
    """What comes back of these."""
    call = channel.stream_stream(VERIFY)()
    for message in messages:
        await call.write(message)
    got = [await call.read() for _ in range(num)]
    call.cancel()
    return got


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
async def test_messages_are_dropped_doubled_and_overtaken(direction):
    fates = {b"drop": (), b"twice": (0.0, 0.0), b"late": (0.2,)}
    async with echoing(on(direction, fates)) as channel:
        got = await echoed(channel, b"late", b"drop", b"twice", b"once", num=4)
    assert got == [b"twice", b"twice", b"once", b"late"]


async def test_a_stream_can_be_cut():
    async with echoing(on(Direction.REPLY, {b"x": ("cut",)})) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="broke the stream"):
            await echoed(channel, b"x", num=1)


async def test_a_single_call_is_handed_on():
    async with echoing(on(Direction.REQUEST, {b"x": (0.0, 0.0)})) as channel:
        assert await channel.unary_unary("/any/Call")(b"x") == b"x"


async def _echo(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def connected():
    """A proxy before an echo server, and a connection through it."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, TcpProxy(f"{host}:{port}") as proxy:
        near, _, near_port = proxy.address.rpartition(":")
        reader, writer = await asyncio.open_connection(near, int(near_port))
        yield proxy, reader, writer
        writer.close()


@pytest.mark.parametrize("weather", [Weather.CLEAR, Weather.DELAY, Weather.DRIBBLE])
async def test_bytes_arrive_in_this_weather(weather):
    async with connected() as (proxy, reader, writer):
        proxy.set_weather(weather)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize("weather", [Weather.PARTITION, Weather.DEAF, Weather.MUTE])
async def test_bytes_wait_for_better_weather(weather):
    async with connected() as (proxy, reader, writer):
        proxy.set_weather(weather)
        writer.write(b"hello")
        reading = asyncio.create_task(reader.readexactly(5))
        await asyncio.wait([reading], timeout=0.2)
        assert not reading.done()
        proxy.set_weather(Weather.CLEAR)
        assert await reading == b"hello"


async def test_a_reset_is_told_to_the_ends():
    async with connected() as (proxy, reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)


async def test_a_connection_that_vanished_says_nothing():
    async with connected() as (proxy, reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)
        proxy.vanish()
        writer.write(b"hello?")
        reading = asyncio.create_task(reader.read(1))
        await asyncio.wait([reading], timeout=0.2)
        assert not reading.done()
        reading.cancel()
