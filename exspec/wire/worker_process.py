"""The life of a worker process: listen, load on the worker thread, register, serve, drain, stop.

What a role adds (its servicer, its model) is handed in as a `WorkerRole`. No model code here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from enum import Enum
from typing import Protocol

import grpc.aio

from exspec.core.cluster import WorkerInfo
from exspec.core.errors import ExspecError
from exspec.core.ids import Role, WorkerId
from exspec.core.metrics import Samples
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import monotonic
from exspec.runtime.metrics import metrics_served
from exspec.runtime.settings import WorkerSettings
from exspec.runtime.worker_metrics import METRICS, WorkerFigures, WorkerMeasures
from exspec.runtime.worker_thread import WorkerThread
from exspec.wire.auth import RoleGuard
from exspec.wire.process import (
    StopSignals,
    ignore_stop_signals,
    stop_signals,
    unless_stopped,
    write_port_file,
)
from exspec.wire.registration import Registration
from exspec.wire.server import RpcServer, reachable_address
from exspec.wire.tls import TlsFiles, cluster_credentials, tls_files

logger = logging.getLogger(__name__)


class Identity:
    """Who this process is: a stable name and an incarnation drawn now."""

    def __init__(self, role: Role, worker_id: str) -> None:
        self.role = role
        self.incarnation = secrets.token_hex(8)
        drawn = f"{role.value}-{socket.gethostname()}-{os.getpid()}-{self.incarnation[:4]}"
        self.worker_id = WorkerId(worker_id or drawn)


class Ending(Enum):
    """How a worker's life ended, when it ended well."""

    WHILE_LOADING = "while_loading"
    DRAINED = "drained"
    """Told to stop, by a signal or by an operator who drained it."""
    AT_ONCE = "at_once"
    """Told to stop a second time, before it was drained."""


class WorkerRole(Protocol):
    """What the process needs of a role."""

    @property
    def service_name(self) -> str:
        """Full name of the gRPC service, for health and reflection."""
        ...

    @property
    def measures(self) -> WorkerMeasures:
        """What was served so far; read after `add_to`."""
        ...

    @property
    def num_sequences(self) -> int:
        """Sequences held now; read on the event loop while the worker thread changes it."""
        ...

    def add_to(self, server: grpc.aio.Server, thread: WorkerThread) -> None:
        """Add the servicer; called once, before the server starts and before `load`."""
        ...

    def load(self) -> None:
        """Load and warm up the model. Runs on the worker thread, once, before registration."""
        ...

    def describe(self, address: str) -> WorkerInfo:
        """The worker as it announces itself; called after `load`."""
        ...


def run_process(role: WorkerRole, identity: Identity, settings: WorkerSettings) -> int:
    """Run a worker until it is told to stop; the exit code, 1 if it could not serve."""
    try:
        ending = asyncio.run(run_worker(role, identity, settings))
    except (ExspecError, OSError) as error:
        logger.error("worker.failed reason=%s", error)  # noqa: TRY400 - the reason is enough
        return 1
    if ending is not Ending.DRAINED:
        # A load or a pass cannot be interrupted and nothing depends on it: do not wait for it.
        logging.shutdown()
        os._exit(0)
    ignore_stop_signals()
    return 0


async def run_worker(role: WorkerRole, identity: Identity, settings: WorkerSettings) -> Ending:
    """Serve until SIGTERM or SIGINT, or until an operator drained it; then leave and stop.

    Leaving: health says not ready at once, no new rows come, those there are moved, then the
    process ends. A second signal ends it at once; others are fed what it held, from the log.

    The port is taken first, so that a port in use is reported before a model is loaded; health
    says alive from then on, and ready once the model is warm.

    Raises:
        ExspecError: the port, the model or the registration was refused.
    """
    stop = stop_signals()
    tls = tls_files(settings)
    server, bound = listen(role.service_name, settings, tls)
    thread = WorkerThread(identity.role.value)
    role.add_to(server.grpc_server, thread)
    shown = _Shown(role, identity.role)
    await server.start()
    try:
        async with metrics_served(settings, METRICS, shown.samples):
            write_port_file(settings.port_file, bound)
            if not await unless_stopped(asyncio.create_task(thread.run(role.load)), stop.asked):
                return Ending.WHILE_LOADING
            await server.set_ready(is_ready=True)
            worker = role.describe(settings.advertise or reachable_address(bound))
            shown.worker = worker
            logger.info("worker.ready worker=%s address=%s", identity.worker_id, bound)
            coordinator_tls = None if tls is None else tls.as_peer_of(PeerRole.COORDINATOR)
            await _serve(Registration(settings.coordinator, worker, coordinator_tls), server, stop)
    finally:
        await unless_stopped(
            asyncio.create_task(server.stop(settings.grace_seconds)), stop.insisted
        )
    is_idle = await unless_stopped(asyncio.create_task(thread.run(_nothing)), stop.insisted)
    logger.info("worker.stopped worker=%s", identity.worker_id)
    if not is_idle:
        return Ending.AT_ONCE
    thread.close()
    return Ending.DRAINED


class _Shown:
    """What metrics show of the worker; `worker` is None while it loads."""

    def __init__(self, role: WorkerRole, kind: Role) -> None:
        self._role = role
        self._kind = kind
        self.worker: WorkerInfo | None = None

    def samples(self) -> Samples:
        figures = None
        if self.worker is not None:
            figures = WorkerFigures(self.worker, self._role.num_sequences)
        return self._role.measures.samples(self._kind, figures)


def _nothing() -> None:
    """What a thread does last: all it was given before is done then."""


def listen(
    service_name: str, settings: WorkerSettings, tls: TlsFiles | None
) -> tuple[RpcServer, str]:
    """A worker's server and the address it is bound to. With TLS only coordinators may call.

    Raises:
        ExspecError: the port is taken or would be open to others, or a TLS file cannot be used.
    """
    guards = () if tls is None else (RoleGuard({service_name: {PeerRole.COORDINATOR}}),)
    server = RpcServer([service_name], guards=guards, has_reflection=settings.has_reflection)
    if tls is not None:
        credentials = cluster_credentials(tls, monotonic)
        return server, server.bind_tls(settings.host, settings.port, credentials)
    is_allowed = settings.allow_insecure_bind
    return server, server.bind(settings.host, settings.port, allow_insecure=is_allowed)


async def _serve(registration: Registration, server: RpcServer, stop: StopSignals) -> None:
    """Keep the lease until it is time to go, then hand over what is held."""
    keeping = asyncio.create_task(registration.keep())
    is_drained = await unless_stopped(keeping, stop.asked)
    await server.set_ready(is_ready=False)
    if is_drained:
        logger.info("worker.draining reason=%r", "an operator drained it")
    else:
        keeping.cancel()
        logger.info("worker.draining reason=%r", "told to stop")
    leaving = asyncio.create_task(registration.leave())
    if not await unless_stopped(leaving, stop.insisted):
        leaving.cancel()
        logger.warning("worker.undrained reason=%r", "told to stop at once")
