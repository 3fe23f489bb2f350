"""An asyncio connection to a coordinator: connects, calls, retries. The twin of `connection`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc
import grpc.aio

from exspec.client.attempts import Attempts, ClientSettings
from exspec.client.courses import Course
from exspec.client.stubs import AsyncMessageStream, AsyncStreamCall, AsyncStubs, AsyncUnaryCall
from exspec.core.errors import ExspecError, UnavailableError
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
        self.is_closed = False

    @property
    def stubs(self) -> AsyncStubs:
        """The methods; opens the channel."""
        if self.is_closed:
            raise RuntimeError("the client is closed")
        if self._stubs is None:
            self._channel = open_aio_channel(self.settings.address, self.settings.tls)
            self._stubs = AsyncStubs(self._channel, self.settings.metadata)
        return self._stubs

    async def close(self) -> None:
        """Drop the channel; running calls end with RequestCancelledError."""
        self.is_closed = True
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
            except asyncio.CancelledError as cancelled:
                if not is_our_own(cancelled_by_us=self.is_closed):
                    raise
                raise attempts.cancelled_error() from cancelled
            await asyncio.sleep(attempts.pause_after(error))

    async def connect(self, attempts: Attempts) -> None:
        """Make sure that somebody answers; UnavailableError names the address if nobody does."""
        if self.is_closed:
            raise attempts.cancelled_error()
        if self._is_connected:
            return
        try:
            await self.stubs.list_models(pb.ListModelsRequest(), timeout=attempts.connect_seconds())
        except grpc.RpcError as failure:
            error = attempts.connect_error(failure)
            if error is not None:
                raise error from failure
        if self.is_closed:  # meanwhile
            raise attempts.cancelled_error()
        self._is_connected = True

    def note(self, error: ExspecError) -> ExspecError:
        """After an unavailable coordinator, the next call checks again that somebody answers."""
        if isinstance(error, UnavailableError):
            self._is_connected = False
        return error


def is_our_own(*, cancelled_by_us: bool) -> bool:
    """Whether a CancelledError is about a call that we cancelled, not about the task it is in.

    grpc.aio raises the same for both.
    """
    task = asyncio.current_task()
    return cancelled_by_us and (task is None or not task.cancelling())


class AsyncEventCall(Generic[Q, M, E]):
    """One generation, or batch, read event by event over as many calls as it takes.

    Started on first use, made again as `Attempts` says. Owns the running gRPC call.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        method: Callable[[AsyncStubs], AsyncStreamCall[Q, M]],
        course: Course[Q, M, E],
        attempts: Attempts,
    ) -> None:
        self._connection = connection
        self._method = method
        self._course = course
        self._attempts = attempts
        self._running: AsyncMessageStream[M] | None = None
        self._has_begun = False
        self._cancelled = asyncio.Event()
        self._failure: ExspecError | None = None
        self._is_over = False

    async def start(self) -> None:
        """Send the request, if it is not sent yet."""
        if self._running is None:
            method = self._method(self._connection.stubs)
            self._has_begun = True
            await self._connection.connect(self._attempts)
            request, timeout = self._course.request(), self._attempts.remaining()
            self._running = method(request, timeout=timeout)
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

    @property
    def _is_stopped(self) -> bool:
        """Whether this side wants no more of it."""
        return self._cancelled.is_set() or (self._has_begun and self._connection.is_closed)

    async def _read(self) -> E | None:
        while True:
            if self._is_stopped:
                raise self._attempts.cancelled_error()
            try:
                message = await self._receive()
            except grpc.RpcError as failure:
                if self._course.is_over:
                    return self._end()
                await self._pause(self._error_of(failure))
            except UnavailableError as unreachable:
                await self._pause(unreachable)
            else:
                if message is grpc.aio.EOF:
                    return self._end()
                event = self._course.take(message)
                if event is not None:
                    self._attempts.note_progress()
                    return event

    async def _receive(self) -> M:
        try:
            await self.start()
            assert self._running is not None
            return await self._running.read()
        except asyncio.CancelledError as cancelled:
            if is_our_own(cancelled_by_us=self._is_stopped):
                raise self._attempts.cancelled_error() from cancelled
            self._cancel_running()
            raise

    def _end(self) -> None:
        self._is_over = True

    def _error_of(self, failure: grpc.RpcError) -> ExspecError:
        error = self._connection.note(self._attempts.error_of(failure))
        if self._is_stopped:
            error = self._attempts.cancelled_error()
        error.__cause__ = failure
        return error

    async def _pause(self, error: ExspecError) -> None:
        """Wait until the call is to be made again; raises `error` if it is not to be."""
        self._running = None
        pause = self._attempts.pause_before_next(self._course, error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), pause)

    def _cancel_running(self) -> None:
        if self._running is not None:
            self._running.cancel()
