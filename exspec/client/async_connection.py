"""An asyncio connection to a coordinator: connects, calls, retries. The twin of `connection`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc
import grpc.aio

from exspec.client.attempts import Attempts, ClientSettings
from exspec.client.stubs import AsyncMessageStream, AsyncStreamCall, AsyncStubs, AsyncUnaryCall
from exspec.core.errors import ExspecError, RequestCancelledError, UnavailableError
from exspec.runtime.clock import Clock
from exspec.v1 import generation_pb2 as pb
from exspec.wire.channel import open_aio_channel

Q = TypeVar("Q")
M = TypeVar("M")
E = TypeVar("E")


class AsyncConnection:
    """One channel, opened and connected on first use, which ties it to that event loop."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._stubs: AsyncStubs | None = None
        self._is_connected = False
        self._is_closed = False

    @property
    def stubs(self) -> AsyncStubs:
        """The methods; opens the channel."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        if self._stubs is None:
            self._channel = open_aio_channel(self.settings.address, self.settings.tls)
            self._stubs = AsyncStubs(self._channel, self.settings.metadata)
        return self._stubs

    async def close(self) -> None:
        """Drop the channel; running calls are cancelled."""
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()

    def attempts(self, request_id: str, timeout: float | None) -> Attempts:
        """The tries of a new call."""
        return Attempts(self.settings, self.clock, request_id, timeout)

    async def call(self, method: AsyncUnaryCall[Q, M], request: Q, attempts: Attempts) -> M:
        """One answer, retried as `attempts` says."""
        while True:
            try:
                await self.connect(attempts)
                return await method(request, timeout=attempts.remaining())
            except grpc.RpcError as failure:
                error = self.note(attempts.error_of(failure))
                error.__cause__ = failure
            except UnavailableError as unreachable:
                error = unreachable
            await asyncio.sleep(attempts.pause_after(error))

    async def connect(self, attempts: Attempts) -> None:
        """Make sure that somebody answers; UnavailableError names the address if nobody does."""
        stubs = self.stubs
        if self._is_connected:
            return
        try:
            await stubs.list_models(pb.ListModelsRequest(), timeout=attempts.connect_seconds())
        except grpc.RpcError as failure:
            error = attempts.connect_error(failure)
            if error is not None:
                raise error from failure
        self._is_connected = True

    def note(self, error: ExspecError) -> ExspecError:
        """After an unavailable coordinator, the next call checks again that somebody answers."""
        if isinstance(error, UnavailableError):
            self._is_connected = False
        return error


class AsyncEventCall(Generic[Q, M, E]):
    """One streaming call: started on first use, retried until its first event, read one by one.

    Owns the running gRPC call.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        method: Callable[[AsyncStubs], AsyncStreamCall[Q, M]],
        request: Q,
        attempts: Attempts,
        decode: Callable[[M], E],
    ) -> None:
        self._connection = connection
        self._method = method
        self._request = request
        self._attempts = attempts
        self._decode = decode
        self._running: AsyncMessageStream[M] | None = None
        self._has_events = False
        self._cancelled = asyncio.Event()
        self._failure: ExspecError | None = None
        self._is_over = False

    async def start(self) -> None:
        """Send the request, if it is not sent yet."""
        if self._running is None:
            await self._connection.connect(self._attempts)
            method = self._method(self._connection.stubs)
            self._running = method(self._request, timeout=self._attempts.remaining())
            if self._cancelled.is_set():
                self._running.cancel()

    async def next(self) -> E | None:
        """The next event; None at the end. An error is raised again by every later call."""
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            return None
        try:
            return await self._read()
        except ExspecError as error:
            self._failure = error
            self._cancel_running()
            raise

    def cancel(self) -> None:
        """Tell the coordinator to stop; what is read later is RequestCancelledError."""
        self._cancelled.set()
        self._cancel_running()

    def close(self) -> None:
        """Cancel, unless the end was read."""
        if not self._is_over and self._failure is None:
            self.cancel()

    async def _read(self) -> E | None:
        while True:
            if self._cancelled.is_set():
                raise self._attempts.cancelled_error()
            try:
                await self.start()
                assert self._running is not None
                message = await self._running.read()
            except grpc.RpcError as failure:
                await self._pause(self._error_of(failure))
            except UnavailableError as unreachable:
                await self._pause(unreachable)
            except asyncio.CancelledError as cancelled:
                self._raise_if_ours(cancelled)
                self._cancel_running()
                raise
            else:
                if message is grpc.aio.EOF:
                    self._is_over = True
                    return None
                self._has_events = True
                return self._decode(message)

    def _raise_if_ours(self, cancelled: asyncio.CancelledError) -> None:
        """grpc.aio raises CancelledError for `cancel()`, too; that one is not the task's."""
        task = asyncio.current_task()
        if self._cancelled.is_set() and (task is None or not task.cancelling()):
            raise self._attempts.cancelled_error() from cancelled

    def _error_of(self, failure: grpc.RpcError) -> ExspecError:
        error = self._connection.note(self._attempts.error_of(failure))
        if isinstance(error, RequestCancelledError) and self._cancelled.is_set():
            error = self._attempts.cancelled_error()
        error.__cause__ = failure
        return error

    async def _pause(self, error: ExspecError) -> None:
        if self._has_events:
            raise error
        self._running = None
        pause = self._attempts.pause_after(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), pause)

    def _cancel_running(self) -> None:
        if self._running is not None:
            self._running.cancel()
