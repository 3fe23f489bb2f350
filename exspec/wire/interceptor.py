"""The edge of every server: who calls is checked, bytes become messages, errors become statuses.

One interceptor does all three, in this order, so that nothing of a refused caller is parsed and
nothing that is raised escapes without a status of ours. No service logic.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from exspec.core.errors import (
    DeadlineExceededError,
    ExspecError,
    InternalError,
    InvalidRequestError,
)
from exspec.wire.auth import Call, Guard
from exspec.wire.health import SERVICE_NAME
from exspec.wire.status import to_status

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Guarded = Callable[[AsyncIterable[bytes], Context], Awaitable[None]]
"""A handler as the library gets it: writes its responses, or a status, to the context."""

REQUEST_SECONDS = 30.0
"""How long the one message of a call may take to arrive."""

UNGUARDED_REQUEST_SECONDS = 5.0
"""The same where anybody may call: such messages are a few bytes, whatever is held for longer."""

ABORT_SECONDS = 5.0
"""How long a handler waits for its error to be taken off its hands."""

_HEALTH = f"/{SERVICE_NAME}/"


@dataclass(frozen=True, slots=True)
class Edge:
    """What stands before one method: its guards and its parser."""

    method: str
    guards: tuple[Guard, ...]
    parse: Callable[[bytes], Any]

    def admit(self, context: Context) -> None:
        """Raises what a guard raises."""
        for guard in self.guards:
            guard(self.method, cast("Call", context))

    def message(self, raw: bytes) -> Any:  # noqa: ANN401 - whatever the method takes
        """The message; InvalidRequestError when the bytes are none."""
        try:
            return self.parse(raw)
        except DecodeError as error:
            raise InvalidRequestError(
                f"the request is not the message that {self.method} takes", field="request"
            ) from error


class Messages:
    """The messages of a stream, parsed one by one as they are asked for."""

    def __init__(self, raws: AsyncIterable[bytes], edge: Edge) -> None:
        self._raws = raws
        self._edge = edge
        self._iterator: AsyncIterator[bytes] | None = None
        """None until the first is asked for: the library warns of one that was never used."""

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - as above
        if self._iterator is None:
            self._iterator = aiter(self._raws)
        return self._edge.message(await anext(self._iterator))

    async def only(self) -> Any:  # noqa: ANN401 - as above
        """The one message of a call that takes one.

        Raises:
            InvalidRequestError: there is none, or it is none.
            DeadlineExceededError: it did not come in time; what had come of it is dropped.
        """
        seconds = REQUEST_SECONDS if self._edge.guards else UNGUARDED_REQUEST_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await anext(self)
        except StopAsyncIteration:
            raise InvalidRequestError("the request holds no message", field="request") from None
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"the request did not arrive within {seconds:g} s"
            ) from error


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server. Guards are asked in order; health is never guarded.

    On the wire every method is a stream of messages either way. Handlers are all wrapped as such:
    the library would hold the one message of a call, however long it takes to come, before it asked
    anybody whether the caller may call at all.
    """

    def __init__(self, guards: Sequence[Guard] = ()) -> None:
        self._guards = tuple(guards)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - the library's own type
        """Wrap the handler by its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: str = handler_call_details.method
        guards = () if method.startswith(_HEALTH) else self._guards
        edge = Edge(method, guards, handler.request_deserializer or bytes)
        make = cast("Any", grpc.stream_stream_rpc_method_handler)
        return make(
            _wrap(handler, edge),
            request_deserializer=None,
            response_serializer=handler.response_serializer,
        )


def _wrap(handler: Any, edge: Edge) -> Guarded:  # noqa: ANN401
    if handler.request_streaming and handler.response_streaming:
        return guard(partial(_serve_stream, handler.stream_stream), edge)
    assert not handler.request_streaming, "no service of ours takes a stream for one answer"
    if handler.response_streaming:
        return guard(partial(_serve_one_by_many, handler.unary_stream), edge)
    return guard(partial(_serve_one_by_one, handler.unary_unary), edge)


def guard(serve: Callable[[Messages, Context], Awaitable[None]], edge: Edge) -> Guarded:
    """A handler behind its edge; none of the messages is read before the guards were asked."""

    async def guarded(raws: AsyncIterable[bytes], context: Context) -> None:
        try:
            edge.admit(context)
            await serve(Messages(raws, edge), context)
        except Exception as error:  # noqa: BLE001 - the edge of the process
            await _abort(context, error, edge.method)

    return guarded


async def _serve_one_by_one(
    inner: Callable[[Any, Context], Awaitable[Any]], messages: Messages, context: Context
) -> None:
    await context.write(await inner(await messages.only(), context))


async def _serve_one_by_many(
    inner: Callable[[Any, Context], Any], messages: Messages, context: Context
) -> None:
    await write_all(inner(await messages.only(), context), context)


async def _serve_stream(
    inner: Callable[[Any, Context], Any], messages: Messages, context: Context
) -> None:
    await write_all(inner(messages, context), context)


async def write_all(responses: Any, context: Context) -> None:  # noqa: ANN401 - what handlers give
    """Write the responses ourselves: a caller may leave while one is being sent.

    The library would leave a generator that it was sending for to the garbage collector, and with
    it all that its `finally` frees.
    """
    if inspect.iscoroutine(responses):
        await responses  # the library's health servicer writes to the context, too
        return
    async with contextlib.aclosing(responses):
        async for response in responses:
            await context.write(response)


async def _abort(context: Context, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, ExspecError):
        error_id = uuid.uuid4().hex[:12]
        logger.error("rpc.failed method=%s error_id=%s", method, error_id, exc_info=error)
        error = InternalError(f"internal error {error_id}; see the server's log")
    with contextlib.suppress(TimeoutError):
        # A caller that does not read gets the status when it does; nobody waits for that.
        async with asyncio.timeout(ABORT_SECONDS):
            await context.abort_with_status(to_status(error))
