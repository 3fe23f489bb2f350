"""The coordinator's ports: one for clients, and one for workers and operators where asked for.

Who may call what is decided here, by what each port serves and by the guards before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from coordinator.parts import (
    ADMIN_SERVICE,
    GENERATION_SERVICE,
    REGISTRY_SERVICE,
    SERVICE_NAMES,
    Parts,
)
from coordinator.settings import CoordinatorSettings
from exspec.core.peer_roles import PeerRole
from exspec.runtime.addresses import is_loopback
from exspec.runtime.clock import Clock
from exspec.wire.auth import Guard, KeyGuard, MethodGuard, RoleGuard, open_key_file
from exspec.wire.channel import MAX_REQUEST_BYTES, MAX_RESUMED_REQUEST_BYTES
from exspec.wire.server import RpcServer
from exspec.wire.tls import (
    TlsFiles,
    client_port_credentials,
    cluster_credentials,
    tls_files,
)

logger = logging.getLogger(__name__)

_CLUSTER_ROLES = {
    REGISTRY_SERVICE: {PeerRole.WORKER},
    ADMIN_SERVICE: {PeerRole.OPERATOR},
}
_READ_ONLY = MethodGuard(ADMIN_SERVICE, ["GetClusterStatus"], "use the coordinator's cluster port")


@dataclass(frozen=True, slots=True)
class Port:
    """A bound server."""

    server: RpcServer
    address: str


@dataclass(frozen=True, slots=True)
class Ports:
    """What a coordinator listens on. `cluster` is None where workers use the clients' port."""

    clients: Port
    cluster: Port | None

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of each, the clients' first."""
        return tuple(port.address for port in self._all)

    def add_services(self, parts: Parts) -> None:
        """Each service on its port."""
        clients = self.clients.server.grpc_server
        if self.cluster is None:
            parts.add_to(clients)
            return
        cluster = self.cluster.server.grpc_server
        parts.add_generation_to(clients)
        parts.add_admin_to(clients)
        parts.add_registry_to(cluster)
        parts.add_admin_to(cluster)

    async def start(self) -> None:
        """Serve calls; alive, not ready."""
        for port in self._all:
            await port.server.start()

    async def set_ready(self, *, is_ready: bool) -> None:
        """Tell health checks whether requests can be served."""
        for port in self._all:
            await port.server.set_ready(is_ready=is_ready)

    async def stop(self, grace_seconds: float) -> None:
        """No new calls; running ones get `grace_seconds`."""
        await asyncio.gather(*(port.server.stop(grace_seconds) for port in self._all))

    @property
    def _all(self) -> tuple[Port, ...]:
        return (self.clients,) if self.cluster is None else (self.clients, self.cluster)


def bind_ports(settings: CoordinatorSettings, clock: Clock) -> Ports:
    """Take the ports; nothing is served yet.

    Raises:
        ExspecError: a port is taken or would be open to others, or a file of keys or certificates
            cannot be used.
    """
    tls = tls_files(settings)
    clients = RpcServer(
        SERVICE_NAMES if settings.cluster_port is None else (GENERATION_SERVICE, ADMIN_SERVICE),
        max_request_bytes=MAX_RESUMED_REQUEST_BYTES,
        guards=_client_guards(settings, clock),
        has_reflection=settings.has_reflection,
    )
    credentials = None if tls is None else client_port_credentials(tls, clock)
    bound = _bind(clients, settings, settings.port, credentials)
    if settings.cluster_port is None:
        return Ports(bound, None)
    return Ports(bound, _bind_cluster(settings, settings.cluster_port, tls, clock))


def _bind_cluster(
    settings: CoordinatorSettings, port: int, tls: TlsFiles | None, clock: Clock
) -> Port:
    server = RpcServer(
        (REGISTRY_SERVICE, ADMIN_SERVICE),
        max_request_bytes=MAX_REQUEST_BYTES,
        guards=() if tls is None else (RoleGuard(_CLUSTER_ROLES),),
        has_reflection=settings.has_reflection,
    )
    credentials = None if tls is None else cluster_credentials(tls, clock)
    return _bind(server, settings, port, credentials)


def _client_guards(settings: CoordinatorSettings, clock: Clock) -> Sequence[Guard]:
    """Keys before anything else, so that strangers learn nothing of what is closed."""
    guards: list[Guard] = []
    if settings.api_keys_file:
        if not settings.has_tls and not is_loopback(settings.host):
            logger.warning("auth.plain_text host=%s: keys can be read on the way", settings.host)
        guards.append(KeyGuard(open_key_file(settings.api_keys_file, clock)))
    if settings.cluster_port is not None:
        guards.append(_READ_ONLY)
    return guards


def _bind(
    server: RpcServer,
    settings: CoordinatorSettings,
    port: int,
    credentials: grpc.ServerCredentials | None,
) -> Port:
    if credentials is not None:
        return Port(server, server.bind_tls(settings.host, port, credentials))
    is_allowed = settings.allow_insecure_bind
    return Port(server, server.bind(settings.host, port, allow_insecure=is_allowed))
