"""grpc.health.v1 without its missing types: the servicer, and a probe. Loads no torch."""

from __future__ import annotations

from typing import Any, Protocol, cast

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from exspec.wire.channel import open_channel
from exspec.wire.tls import TlsConfig

SERVICE_NAME: str = cast("Any", health).SERVICE_NAME


class HealthState(Protocol):
    """What of the library's asyncio servicer is used."""

    async def set(self, service: str, status: int) -> None:
        """Set a service's status and tell the watchers."""
        ...

    async def enter_graceful_shutdown(self) -> None:
        """NOT_SERVING for all, for good."""
        ...


def add_health(server: grpc.aio.Server) -> HealthState:
    """Serve grpc.health.v1 (Check, List, Watch) on `server`."""
    servicer = cast("Any", health).aio.HealthServicer()
    cast("Any", health_pb2_grpc).add_HealthServicer_to_server(servicer, server)
    return servicer


def serving_status(*, is_serving: bool) -> int:
    """SERVING or NOT_SERVING."""
    status = health_pb2.HealthCheckResponse
    return status.SERVING if is_serving else status.NOT_SERVING


def probe(
    address: str, service: str, *, timeout_seconds: float, tls: TlsConfig | None = None
) -> bool:
    """Whether `service` at host:port says SERVING; False when it cannot be asked."""
    with open_channel(address, tls) as channel:
        stub = cast("Any", health_pb2_grpc).HealthStub(channel)
        try:
            response = stub.Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_seconds
            )
        except grpc.RpcError:
            return False
    return response.status == serving_status(is_serving=True)
