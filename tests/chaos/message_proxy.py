"""A gRPC proxy that hands calls on message by message, as raw bytes, and lets a tap decide on each.

It speaks any of our services: long-lived streams and single calls. What becomes of a message is the
tap's business; what a status carries is handed on as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
import grpc.aio

from exspec.wire.channel import open_aio_channel

STREAMS = ("Verify", "Draft")


class Direction(Enum):
    """Of a message, seen from whoever called."""

    REQUEST = "request"
    REPLY = "reply"


class BrokenStreamError(Exception):
    """Raised by a tap: the call ends here, as if the connection had been lost."""


class Tap(Protocol):
    """Decides when a message arrives: one delay in seconds per copy; none: never."""

    async def __call__(
        self, method: str, direction: Direction, message: bytes
    ) -> tuple[float, ...]: ...


async def untouched(method: str, direction: Direction, message: bytes) -> tuple[float, ...]:
    """Every message arrives once, at once."""
    return (0.0,)


class MessageProxy:
    """A server of its own in front of one other, which may change. Owns its calls."""

    def __init__(self, tap: Tap = untouched, upstream: str | None = None) -> None:
        self.tap = tap
        self.upstream = upstream
        """host:port of the server behind it; without one calls end with UNAVAILABLE."""
        self.address = ""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])

    async def start(self) -> str:
        """Listen on a free port; the address."""
        self._server.add_generic_rpc_handlers((_Handler(self._stream, self._call),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self.address

    async def close(self) -> None:
        """Break all calls."""
        await self._server.stop(0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def _channel(self, context: Any) -> AsyncIterator[grpc.aio.Channel]:
        """To the server behind; whatever goes wrong there ends the call here."""
        if self.upstream is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nobody is behind the proxy")
        try:
            async with open_aio_channel(self.upstream or "") as channel:
                yield channel
        except grpc.aio.AioRpcError as error:
            trailing = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", trailing)
        except BrokenStreamError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy broke the stream")

    async def _stream(
        self, method: str, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        async with self._channel(context) as channel:
            call = channel.stream_stream(method)()
            replies = Lane()
            up = asyncio.create_task(self._feed(method, requests, call))
            down = asyncio.create_task(self._fill(replies, method, Direction.REPLY, call))
            try:
                async for reply in replies:
                    if up.done():
                        up.result()
                    yield reply
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
                call.cancel()

    async def _feed(self, method: str, requests: AsyncIterator[bytes], call: Any) -> None:
        """What the caller sends, on to the server behind."""
        lane = Lane()
        filling = asyncio.create_task(self._fill(lane, method, Direction.REQUEST, requests))
        try:
            async for request in lane:
                await call.write(request)
            await call.done_writing()
        except (BrokenStreamError, asyncio.InvalidStateError):
            call.cancel()
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill(
        self, lane: Lane, method: str, direction: Direction, messages: AsyncIterator[bytes]
    ) -> None:
        """Put each message into the lane as the tap decides."""
        try:
            async for message in messages:
                for delay in await self.tap(method, direction, message):
                    lane.put(message, delay)
            lane.end(None)
        except Exception as error:  # noqa: BLE001 - whoever reads the lane gets it
            lane.end(error)

    async def _call(self, method: str, request: bytes, context: Any) -> bytes:
        """A single call: asked as often as the tap says, answered once if at all."""
        async with self._channel(context) as channel:
            delays = await self.tap(method, Direction.REQUEST, request)
            asks = [_ask_later(channel, method, request, delay) for delay in delays]
            for answer in (await asyncio.gather(*asks))[:1]:
                for delay in (await self.tap(method, Direction.REPLY, answer))[:1]:
                    await asyncio.sleep(delay)
                    return answer
            return await asyncio.get_running_loop().create_future()  # until the caller gives up


async def _ask_later(channel: Any, method: str, request: bytes, delay: float) -> bytes:
    await asyncio.sleep(delay)
    return await channel.unary_unary(method)(request)


class Lane:
    """Messages on their way in one direction of one stream; a delayed one is overtaken."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def put(self, message: bytes, delay: float) -> None:
        """Let a message arrive after that many seconds."""
        if delay:
            asyncio.get_running_loop().call_later(delay, self._arrived.put_nowait, message)
        else:
            self._arrived.put_nowait(message)

    def end(self, error: Exception | None) -> None:
        """No more messages come, or none can."""
        self._arrived.put_nowait(error)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (item := await self._arrived.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


class _Handler(grpc.GenericRpcHandler):
    """Whatever is called, the bytes are handed over."""

    def __init__(self, stream: Callable[..., Any], call: Callable[..., Awaitable[bytes]]) -> None:
        self._stream = stream
        self._call = call

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.rpartition("/")[2] in STREAMS:

            async def stream(requests: Any, context: Any) -> Any:
                async with contextlib.aclosing(self._stream(method, requests, context)) as replies:
                    async for reply in replies:
                        await context.write(reply)

            return grpc.stream_stream_rpc_method_handler(stream)

        async def call(request: Any, context: Any) -> bytes:
            return await self._call(method, request, context)

        return grpc.unary_unary_rpc_method_handler(call)
