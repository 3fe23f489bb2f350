"""A blocking connection to a coordinator: connects, calls, retries. No requests, no results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Generic, TypeVar

import grpc

from exspec.client.attempts import Attempts, ClientSettings
from exspec.client.courses import Course
from exspec.client.stubs import MessageStream, StreamCall, Stubs, UnaryCall
from exspec.core.errors import ExspecError, UnavailableError
from exspec.runtime.clock import Clock
from exspec.v1 import generation_pb2 as pb
from exspec.wire.channel import open_channel

Q = TypeVar("Q")
M = TypeVar("M")
E = TypeVar("E")


class Connection:
    """One channel, opened at once and connected on first use. Safe to share between threads."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self._channel = open_channel(settings.address, settings.tls)
        self.stubs = Stubs(self._channel, settings.metadata)
        self._is_connected = False
        self.is_closed = False

    def close(self) -> None:
        """Drop the channel; running calls end with RequestCancelledError."""
        self.is_closed = True
        self._channel.close()

    def attempts(self, request_id: str, timeout: float | None) -> Attempts:
        """The tries of a new call."""
        return Attempts(self.settings, self.clock, request_id, timeout)

    def call(self, method: UnaryCall[Q, M], request: Q, attempts: Attempts) -> M:
        """One answer, retried as `attempts` says."""
        self.require_open()
        while True:
            try:
                self.connect(attempts)
                with self.sending(attempts):
                    return method(request, timeout=attempts.remaining())
            except grpc.RpcError as failure:
                error = self.note(attempts.error_of(failure))
                error.__cause__ = failure
            except UnavailableError as unreachable:
                error = unreachable
            threading.Event().wait(attempts.pause_after(error))

    def connect(self, attempts: Attempts) -> None:
        """Make sure that somebody answers; UnavailableError names the address if nobody does."""
        if self._is_connected:
            return
        try:
            with self.sending(attempts):
                self.stubs.list_models(pb.ListModelsRequest(), timeout=attempts.connect_seconds())
        except grpc.RpcError as failure:
            error = attempts.connect_error(failure)
            if self.is_closed:
                error = attempts.cancelled_error()
            if error is not None:
                raise error from failure
        self._is_connected = True

    def require_open(self) -> None:
        """RuntimeError when a call is begun on a client that is closed."""
        if self.is_closed:
            raise RuntimeError("the client is closed")

    @contextlib.contextmanager
    def sending(self, attempts: Attempts) -> Generator[None]:
        """While something is sent: if another thread closes the channel, that cancels it, too.

        gRPC answers with a ValueError then.
        """
        try:
            yield
        except ValueError as refused:
            if not self.is_closed:
                raise
            raise attempts.cancelled_error() from refused

    def note(self, error: ExspecError) -> ExspecError:
        """After an unavailable coordinator, the next call checks again that somebody answers."""
        if isinstance(error, UnavailableError):
            self._is_connected = False
        return error


class EventCall(Generic[Q, M, E]):
    """One generation, or batch, read event by event over as many calls as it takes.

    Started on first use, made again as `Attempts` says. Owns the running gRPC call. `cancel` may
    come from another thread.
    """

    def __init__(
        self,
        connection: Connection,
        method: StreamCall[Q, M],
        course: Course[Q, M, E],
        attempts: Attempts,
    ) -> None:
        self._connection = connection
        self._method = method
        self._course = course
        self._attempts = attempts
        self._running: MessageStream[M] | None = None
        self._has_begun = False
        self._cancelled = threading.Event()
        self._failure: ExspecError | None = None
        self._is_over = False

    def start(self) -> None:
        """Send the request, if it is not sent yet."""
        if self._running is None:
            if not self._has_begun:
                self._connection.require_open()
            self._has_begun = True
            self._connection.connect(self._attempts)
            request, timeout = self._course.request(), self._attempts.remaining()
            with self._connection.sending(self._attempts):
                self._running = self._method(request, timeout=timeout)
            if self._cancelled.is_set():  # meanwhile, by another thread
                self._running.cancel()

    def next(self) -> E | None:
        """The next event; None at the end. An error is raised again by every later call."""
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            return None
        try:
            return self._read()
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

    def _read(self) -> E | None:
        while True:
            if self._is_stopped:
                raise self._attempts.cancelled_error()
            try:
                self.start()
                assert self._running is not None
                event = self._course.take(next(self._running))
            except StopIteration:
                return self._end()
            except grpc.RpcError as failure:
                if self._course.is_over:
                    return self._end()
                self._pause(self._error_of(failure))
            except UnavailableError as unreachable:
                self._pause(unreachable)
            else:
                if event is not None:
                    self._attempts.note_progress()
                    return event

    def _end(self) -> None:
        self._is_over = True

    def _error_of(self, failure: grpc.RpcError) -> ExspecError:
        error = self._connection.note(self._attempts.error_of(failure))
        if self._is_stopped:
            error = self._attempts.cancelled_error()
        error.__cause__ = failure
        return error

    def _pause(self, error: ExspecError) -> None:
        """Wait until the call is to be made again; raises `error` if it is not to be."""
        self._running = None
        self._cancelled.wait(self._attempts.pause_before_next(self._course, error))

    def _cancel_running(self) -> None:
        running = self._running  # the reading thread may set it to None at any time
        if running is not None:
            running.cancel()
