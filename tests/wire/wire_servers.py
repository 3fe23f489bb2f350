"""Servers on loopback for the tests of this folder."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc.aio

from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.server import RpcServer

SERVICE = "exspec.v1.TargetService"


class RaisingServicer(target_pb2_grpc.TargetServiceServicer):
    """Raises what it is given, from a unary call and from a stream."""

    def __init__(self, error: Callable[[], BaseException | None]) -> None:
        self._error = error
        self.closed = asyncio.Event()
        """Set when a stream ended."""

    async def GetTokenizer(self, request, context):
        error = self._error()
        if error is not None:
            raise error
        return target_pb2.GetTokenizerResponse(tokenizer_json="{}")

    async def Verify(self, request_iterator, context):
        try:
            async for request in request_iterator:
                yield target_pb2.VerifyResponse(batch_id=request.batch_id)
                error = self._error()
                if error is not None:
                    raise error
        finally:
            self.closed.set()


@contextlib.asynccontextmanager
async def serving(
    servicer: target_pb2_grpc.TargetServiceServicer,
) -> AsyncIterator[tuple[RpcServer, grpc.aio.Channel]]:
    """A started server with the servicer, and a channel to it."""
    server = RpcServer([SERVICE])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server.grpc_server)
    await server.start()
    try:
        async with open_aio_channel(address) as channel:
            yield server, channel
    finally:
        await server.stop(0)
