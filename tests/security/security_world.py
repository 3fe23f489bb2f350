"""Certificates of all kinds, and a cluster in one event loop with TLS on every port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from bell import Bell
from coordinator_world import NO_TOKENIZER
from fake_worker import FakeWorker
from toy import ToyRunner, draft_language, target_language

from coordinator.parts import Parts, build
from coordinator.servers import Ports, bind_ports
from coordinator.settings import CoordinatorSettings
from exspec.certs.authority import Authority, Validity
from exspec.core.api_keys import add_key
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role
from exspec.core.models import TokenizerAssets
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import monotonic, now
from exspec.runtime.settings import WorkerSettings
from exspec.v1 import draft_pb2, registry_pb2
from exspec.wire.channel import open_channel
from exspec.wire.tls import TlsConfig, TlsFiles, tls_files
from exspec.wire.worker_process import listen

GENEROUS_SECONDS = 20.0
KEY = "exspec_of-alice"
SERVICES = {Role.TARGET: "exspec.v1.TargetService", Role.DRAFT: "exspec.v1.DraftService"}


@dataclass(frozen=True)
class Certificates:
    """Two authorities: one of the cluster, and a stranger's that says the same names."""

    folder: Path

    def files(self, role: PeerRole, kind: str = "good") -> TlsFiles:
        """A service's files; `kind` is good, expired or stranger. Peers are the good one's."""
        stem = self.folder / f"{kind}-{role.name}"
        return TlsFiles(f"{stem}.pem", f"{stem}-key.pem", self.authority())

    def authority(self, kind: str = "good") -> str:
        return str(self.folder / f"{kind}-ca.pem")


def make_certificates(folder: Path) -> Certificates:
    """Of every role: good, expired, and signed by a stranger."""
    day = timedelta(days=1)
    good = Validity(now() - day, now() + day)
    authority, stranger = Authority(good), Authority(good)
    names = ["localhost", "127.0.0.1"]
    for role in PeerRole:
        write_pair(folder, f"good-{role.name}", authority.issue(role, names, good))
        past = Validity(now() - 2 * day, now() - day)
        write_pair(folder, f"expired-{role.name}", authority.issue(role, names, past))
        write_pair(folder, f"stranger-{role.name}", stranger.issue(role, names, good))
    write_pair(folder, "good-ca", authority.pair)
    write_pair(folder, "stranger-ca", stranger.pair)
    return Certificates(folder)


def write_pair(folder, stem, pair):
    (folder / f"{stem}.pem").write_bytes(pair.certificate)
    (folder / f"{stem}-key.pem").write_bytes(pair.key)


def flags(files: TlsFiles) -> dict[str, str]:
    """As settings."""
    return {
        "ssl_certfile": files.certfile, "ssl_keyfile": files.keyfile,
        "ssl_ca_certs": files.ca_certs,
    }  # fmt: skip


class SecureWorker(FakeWorker):
    """A worker that listens and registers as real ones do."""

    files: TlsFiles | None

    def open_server(self, port):
        own = {} if self.files is None else flags(self.files)
        settings = WorkerSettings(_cli_parse_args=[], port=port, **own)
        if self.files is not None:
            self.coordinator_tls = self.files.as_peer_of(PeerRole.COORDINATOR)
        return listen(SERVICES[self.role], settings, tls_files(settings))


@dataclass
class SecureWorld:
    """A coordinator with two ports, and the workers started so far."""

    certificates: Certificates
    key_file: Path
    parts: Parts
    ports: Ports
    bell: Bell
    workers: list[SecureWorker]
    has_plain_text: bool

    @property
    def client_address(self) -> str:
        return self.ports.clients.address

    @property
    def cluster_address(self) -> str:
        assert self.ports.cluster is not None
        return self.ports.cluster.address

    @property
    def client_tls(self) -> TlsConfig:
        """What clients need."""
        return TlsConfig(self.certificates.authority())

    async def start(
        self,
        role: Role,
        *,
        files: TlsFiles | None = None,
        tokenizer: TokenizerAssets = NO_TOKENIZER,
    ) -> SecureWorker:
        """A worker that registers; `until_state` waits for what becomes of it."""
        language = target_language if role is Role.TARGET else draft_language
        worker = SecureWorker(
            role, f"{role.value}-{len(self.workers)}", ToyRunner(language), self.bell
        )
        own = self.certificates.files(PeerRole.WORKER)
        worker.files = None if self.has_plain_text else files or own
        worker.tokenizer = tokenizer
        self.workers.append(worker)
        await worker.listen()
        worker.register(self.cluster_address)
        return worker

    async def until_ready(self, worker: SecureWorker) -> None:
        await self.bell.until(lambda: self.status(worker)[0] is WorkerState.READY)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for what changes without a ring."""

        def look() -> bool:
            self.bell._loop.call_later(0.02, self.bell.ring)
            return bool(holds())

        await self.bell.until(look)

    def status(self, worker: SecureWorker) -> tuple[WorkerState | None, str]:
        """State and reason, as operators see them."""
        for status in self.parts.view.status().workers:
            if status.worker.incarnation == worker.incarnation:
                return status.state, status.reason
        return None, ""


@contextlib.asynccontextmanager
async def secure_world(
    certificates: Certificates, folder: Path, **settings: Any
) -> AsyncIterator[SecureWorld]:
    """A coordinator with TLS, one API key, and a cluster port."""
    bell = Bell()
    key_file = folder / "keys"
    key_file.write_text(add_key("", "alice", KEY))
    values = {
        "port": 0, "cluster_port": 0, "api_keys_file": str(key_file), "unavailable_seconds": 5.0,
        "lease_seconds": 30.0, "num_speculative_tokens": "4",
        **flags(certificates.files(PeerRole.COORDINATOR)), **settings,
    }  # fmt: skip
    made = CoordinatorSettings(_cli_parse_args=[], **values)
    ports = bind_ports(made, monotonic)
    tls = tls_files(made)
    parts = build(made, monotonic, None, None if tls is None else tls.as_peer_of(PeerRole.WORKER))
    ring_on_changes(parts, bell)
    ports.add_services(parts)
    await ports.start()
    running = asyncio.create_task(parts.service.run())
    world = SecureWorld(certificates, key_file, parts, ports, bell, [], tls is None)
    try:
        yield world
    finally:
        for worker in world.workers:
            await worker.kill()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ports.stop(0)
        await parts.registry.close()


def ring_on_changes(parts: Parts, bell: Bell) -> None:
    on_change = parts.registry._on_change
    parts.registry._on_change = lambda: (on_change(), bell.ring())
    register = parts.registry.register
    parts.registry.register = lambda info: (register(info), bell.ring())


# Calls, and how they end

LIST_MODELS = "/exspec.v1.GenerationService/ListModels"
GENERATE = "/exspec.v1.GenerationService/Generate"
HEARTBEAT = "/exspec.v1.RegistryService/Heartbeat"
REGISTER = "/exspec.v1.RegistryService/Register"
STATUS = "/exspec.v1.AdminService/GetClusterStatus"
GET_TOKENIZER = "/exspec.v1.TargetService/GetTokenizer"
VERIFY = "/exspec.v1.TargetService/Verify"
DRAIN_WORKER = "/exspec.v1.AdminService/DrainWorker"
DRAFT = "/exspec.v1.DraftService/Draft"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

_STREAMS = {VERIFY, DRAFT, REFLECTION}
_REQUESTS = {
    HEARTBEAT: registry_pb2.HeartbeatRequest(worker_id="w", incarnation="i"),
    DRAFT: draft_pb2.DraftRequest(batch_id=1),
}


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """A key as it is presented."""
    return (("authorization", f"Bearer {key}"),)


async def outcome(
    address: str,
    method: str,
    tls: TlsConfig | None,
    metadata: tuple[tuple[str, str], ...] = (),
    request: bytes | None = None,
) -> str:
    """OK, or the code the call was refused with; never DEADLINE_EXCEEDED where one is refused.

    On a thread: the library's asyncio calls tell INTERNAL when a stream is refused while its first
    message is being sent.
    """
    message = _REQUESTS.get(method)
    raw = request if request is not None else message.SerializeToString() if message else b""
    return await asyncio.to_thread(_call, address, method, tls, metadata, raw)


def _call(address, method, tls, metadata, raw) -> str:
    with open_channel(address, tls) as channel:
        options = {"timeout": GENEROUS_SECONDS, "metadata": metadata}
        try:
            if method in _STREAMS:
                next(channel.stream_stream(method)(iter([raw]), **options))
            elif method == GENERATE:
                list(channel.unary_stream(method)(raw, **options))
            else:
                channel.unary_unary(method)(raw, **options)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"
