"""Calls with odd messages over raw bytes, and the judgement of how they end.

Every call is bounded. It may succeed, or end with a status that carries our ErrorInfo; it may not
end as somebody's bug, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from exspec.core.ids import Role
from exspec.v1 import draft_pb2, generation_pb2, registry_pb2, target_pb2
from exspec.wire.channel import MAX_REQUEST_BYTES
from exspec.wire.status import ERROR_DOMAIN
from tests.chaos.fuzz_messages import Fuzzer

CALL_SECONDS = 30.0
"""Bound of a call that should end by itself."""
GLANCE_SECONDS = 0.2
"""How long a stream is looked at that would go on for ever."""
MAX_STREAM_MESSAGES = 4
LEAVING_SHARE = 0.1
BUGS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
HEALTH = "grpc.health.v1.Health"
LOST_TO_A_WRITE = "Internal error from Core"
"""What grpc says here, in place of the status, when a write met the end of the stream."""
DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Method:
    """An RPC of a service, and whether its stream ends by itself."""

    descriptor: MethodDescriptor

    @property
    def path(self) -> str:
        """As it is called."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def is_health(self) -> bool:
        """The library's own service, with statuses of its own."""
        return self.descriptor.containing_service.full_name == HEALTH

    @property
    def is_endless(self) -> bool:
        """Whether only its caller ends it."""
        return self.is_health and self.descriptor.server_streaming


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended. `code` is None when we left it ourselves."""

    code: grpc.StatusCode | None
    has_info: bool
    details: str = ""


LEFT = Ending(None, has_info=False)


def coordinator_methods() -> tuple[Method, ...]:
    """All that a coordinator serves."""
    return (*_methods(generation_pb2), *_methods(registry_pb2), *_methods(health_pb2))


def worker_methods(role: Role) -> tuple[Method, ...]:
    """All that a worker serves."""
    own = target_pb2 if role is Role.TARGET else draft_pb2
    return (*_methods(own), *_methods(health_pb2))


def _methods(module: Any) -> Iterator[Method]:
    for service in module.DESCRIPTOR.services_by_name.values():
        yield from (Method(method) for method in service.methods)


def problem_of(method: Method, sent: list[bytes], ending: Ending) -> str | None:
    """What is wrong with how a call ended; None when nothing is."""
    if ending.code in (None, grpc.StatusCode.OK):
        return None
    if ending.code in BUGS:
        return f"{ending.code.name}: {ending.details}"
    if ending.code is grpc.StatusCode.DEADLINE_EXCEEDED and not ending.has_info:
        return f"no end within {CALL_SECONDS:g} s"
    is_too_large = any(len(message) > MAX_REQUEST_BYTES for message in sent)
    if is_too_large and ending.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    if method.is_health and ending.code is grpc.StatusCode.NOT_FOUND:
        return None
    return None if ending.has_info else f"{ending.code.name} without ErrorInfo: {ending.details}"


class Caller:
    """Makes calls to one server. Owns its channel."""

    def __init__(self, address: str, methods: tuple[Method, ...], random: Random) -> None:
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.max_receive_message_length", -1)]
        )
        self.methods = methods
        self._random = random
        self.fuzzer = Fuzzer(random)

    async def close(self) -> None:
        """No more calls."""
        await self._channel.close()

    async def call(self) -> tuple[Method, list[bytes], Ending]:
        """One call drawn: what, with which bytes, and how it ended."""
        method = self._random.choice(self.methods)
        num_messages = 1
        if method.descriptor.client_streaming:
            num_messages = self._random.randrange(MAX_STREAM_MESSAGES + 1)
        sent = [self.fuzzer.draw(method.descriptor.input_type) for _ in range(num_messages)]
        if method.is_endless or self._random.random() < LEAVING_SHARE:
            return method, sent, await self.glance(method, sent)
        return method, sent, await self.send(method, sent)

    async def send(self, method: Method, sent: list[bytes]) -> Ending:
        """Send these, and wait for the end."""
        async with self._open(method, sent) as call:
            try:
                async with asyncio.timeout(2 * CALL_SECONDS):
                    return await _end_of(call)
            except TimeoutError:
                return Ending(grpc.StatusCode.DEADLINE_EXCEEDED, has_info=False)

    async def glance(self, method: Method, sent: list[bytes]) -> Ending:
        """Send these, and leave soon: streams half open, answers unread."""
        async with self._open(method, sent) as call:
            try:
                async with asyncio.timeout(GLANCE_SECONDS):
                    return await _end_of(call)
            except TimeoutError:
                return LEFT

    @contextlib.asynccontextmanager
    async def _open(self, method: Method, sent: list[bytes]) -> AsyncIterator[Any]:
        descriptor, writing = method.descriptor, None
        if descriptor.client_streaming:
            call = self._channel.stream_stream(method.path)(timeout=CALL_SECONDS)
            writing = asyncio.create_task(_write(call, sent))
        elif descriptor.server_streaming:
            call = self._channel.unary_stream(method.path)(sent[0], timeout=CALL_SECONDS)
        else:
            call = self._channel.unary_unary(method.path)(sent[0], timeout=CALL_SECONDS)
        try:
            yield call
        finally:
            call.cancel()
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)


async def _write(call: Any, messages: list[bytes]) -> None:
    """Until the other side ends the stream."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        await call.done_writing()


async def _end_of(call: Any) -> Ending:
    """Read all there is; how it ended."""
    if isinstance(call, grpc.aio.StreamStreamCall | grpc.aio.UnaryStreamCall):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
    trailers = await call.trailing_metadata()
    if await call.details() == LOST_TO_A_WRITE:
        return LEFT
    return Ending(await call.code(), _has_info(trailers), await call.details() or "")


def _has_info(trailers: Any) -> bool:
    """Whether the status is one of ours."""
    for key, value in trailers or ():
        if key == DETAILS_KEY:
            info = error_details_pb2.ErrorInfo()
            status = status_pb2.Status.FromString(value)
            return any(
                detail.Unpack(info) and info.domain == ERROR_DOMAIN for detail in status.details
            )
    return False
