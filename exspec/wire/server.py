"""One asyncio gRPC server as every service of ours runs it.

Health (grpc.health.v1), reflection, message bounds, keepalive, and one interceptor that turns our
errors into statuses and unknown ones into INTERNAL, logged once under an id. No service logic.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import grpc
import grpc.aio

from exspec.core.errors import ExspecError, InternalError, InvalidRequestError, UnavailableError
from exspec.wire.channel import (
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MAX_MESSAGE_BYTES,
    MIN_PING_INTERVAL_MS,
)
from exspec.wire.health import SERVICE_NAME, add_health, serving_status
from exspec.wire.status import to_status

logger = logging.getLogger(__name__)

_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    # A starved server reads queued pings together; closing the connection for it helps nobody.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Calls of a caller that vanished without a word end, and free what they hold.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this a second server shares the port and takes half the calls.
    ("grpc.so_reuseport", 0),
)

LIVENESS = ""
"""Health name that says the process is up, whether or not it can serve."""

ABORT_SECONDS = 5.0
"""How long a handler waits for its error to be taken off its hands."""

Context = grpc.aio.ServicerContext[Any, Any]


class RpcServer:
    """A server and its health. `bind` before `start`; readiness is set by the service itself."""

    def __init__(
        self, service_names: Sequence[str], *, max_request_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        options = (*_SERVER_OPTIONS, ("grpc.max_receive_message_length", max_request_bytes))
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=options)
        self._health = add_health(self._server)
        self._service_names = tuple(service_names)
        _add_reflection(self._server, (*service_names, SERVICE_NAME))

    @property
    def grpc_server(self) -> grpc.aio.Server:
        """For `add_…Servicer_to_server`."""
        return self._server

    def bind(self, host: str, port: int, *, allow_insecure: bool) -> str:
        """Listen on host:port in plain text; returns the address with the port taken.

        Raises:
            InvalidRequestError: beyond loopback without `allow_insecure`.
            UnavailableError: the port is in use, or not ours to take.
        """
        if not allow_insecure and not is_loopback(host):
            raise InvalidRequestError(
                f"host {host!r} is beyond loopback and the port would be in plain text; pass "
                "--allow-insecure-bind if that is what you want",
                field="host",
            )
        try:
            bound = self._server.add_insecure_port(join_address(host, port))
        except RuntimeError as error:
            raise UnavailableError(
                f"cannot listen on {join_address(host, port)}: the port is in use or not allowed"
            ) from error
        return join_address(host, bound)

    async def start(self) -> None:
        """Serve calls; alive, not ready."""
        await self.set_ready(is_ready=False)
        await self._health.set(LIVENESS, serving_status(is_serving=True))
        await self._server.start()

    async def set_ready(self, *, is_ready: bool) -> None:
        """Tell health checks of the services whether calls can be served."""
        for name in self._service_names:
            await self._health.set(name, serving_status(is_serving=is_ready))

    async def stop(self, grace_seconds: float) -> None:
        """No new calls; running ones get `grace_seconds`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def reachable_address(bound: str) -> str:
    """The address others can use for one listened on: a wildcard becomes this machine's name."""
    host, _, port = bound.rpartition(":")
    if host.strip("[]") in ("0.0.0.0", "::"):
        return f"{socket.gethostname()}:{port}"
    return bound


def _add_reflection(server: grpc.aio.Server, names: tuple[str, ...]) -> None:
    """Let tools list the services. The SDK alone, for its users' tests, does without."""
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError:
        return
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - the library's own type
        """Wrap the handler by its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            wrapped = _guard_stream(inner, method)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
        else:
            wrapped = _guard_unary(handler.unary_unary, method)
            make = grpc.unary_unary_rpc_method_handler
        return make(
            cast("Any", wrapped),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _guard_unary(
    inner: Callable[[Any, Context], Awaitable[Any]], method: str
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def guarded(request: Any, context: Context) -> Any:  # noqa: ANN401
        try:
            return await inner(request, context)
        except Exception as error:  # noqa: BLE001 - the edge of the process
            return await _abort(context, error, method)

    return guarded


def _guard_stream(
    inner: Callable[[Any, Context], Any], method: str
) -> Callable[[Any, Context], Awaitable[None]]:
    """Writes the responses itself: a caller may leave while one is being sent.

    The library would leave a generator that it was sending for to the garbage collector, and with
    it all that its `finally` frees.
    """

    async def guarded(request: Any, context: Context) -> None:  # noqa: ANN401
        try:
            responses = inner(request, context)
            if inspect.iscoroutine(responses):
                await responses  # the library's health servicer writes to the context, too
                return
            async with contextlib.aclosing(responses):
                async for response in responses:
                    await context.write(response)
        except Exception as error:  # noqa: BLE001 - the edge of the process
            await _abort(context, error, method)

    return guarded


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
