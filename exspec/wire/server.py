"""One asyncio gRPC server as every service of ours runs it.

Health (grpc.health.v1), reflection, message bounds, keepalive, plain text or TLS, and the
interceptor at its edge. No service logic.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from exspec.core.errors import UnavailableError
from exspec.runtime.addresses import join_address, require_closed
from exspec.wire.auth import Guard
from exspec.wire.channel import (
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MAX_MESSAGE_BYTES,
    MIN_PING_INTERVAL_MS,
)
from exspec.wire.health import SERVICE_NAME, add_health, serving_status
from exspec.wire.interceptor import Context, EdgeInterceptor

__all__ = ["Context", "RpcServer", "join_address", "reachable_address"]

HANDSHAKE_TIMEOUT_MS = 20_000

_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    # A starved server reads queued pings together; closing the connection for it helps nobody.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Calls of a caller that vanished without a word end, and free what they hold.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Who connects and says nothing is let go.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    # Without this a second server shares the port and takes half the calls.
    ("grpc.so_reuseport", 0),
)

LIVENESS = ""
"""Health name that says the process is up, whether or not it can serve."""


class RpcServer:
    """A server and its health. Bind before `start`; readiness is set by the service itself."""

    def __init__(
        self,
        service_names: Sequence[str],
        *,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
        guards: Sequence[Guard] = (),
        has_reflection: bool = True,
    ) -> None:
        options = (*_SERVER_OPTIONS, ("grpc.max_receive_message_length", max_request_bytes))
        self._server = grpc.aio.server(interceptors=[EdgeInterceptor(guards)], options=options)
        self._health = add_health(self._server)
        self._service_names = tuple(service_names)
        if has_reflection:
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
        if not allow_insecure:
            require_closed("host", host)
        return self._bind(host, port, self._server.add_insecure_port)

    def bind_tls(self, host: str, port: int, credentials: grpc.ServerCredentials) -> str:
        """Listen on host:port with TLS; returns the address with the port taken.

        Raises:
            UnavailableError: the port is in use, or not ours to take.
        """
        return self._bind(
            host, port, lambda address: self._server.add_secure_port(address, credentials)
        )

    def _bind(self, host: str, port: int, add_port: Callable[[str], int]) -> str:
        try:
            bound = add_port(join_address(host, port))
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
