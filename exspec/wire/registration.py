"""A worker's side of RegistryService: join, keep the lease, leave. No model, no KV.

The coordinator may start later than the worker, restart, or be away for a while: the worker keeps
trying, and registers again whenever its incarnation is not known.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc
import grpc.aio

from exspec.core.cluster import WorkerInfo
from exspec.core.errors import (
    CallerError,
    ExspecError,
    IncompatibleWorkerError,
    InvalidRequestError,
    ProtocolError,
)
from exspec.v1 import registry_pb2, registry_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.convert_cluster import worker_to_message
from exspec.wire.status import from_call
from exspec.wire.tls import TlsConfig

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
CALL_SECONDS = 5.0
DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Silence for `lease_seconds` and the worker is taken for lost."""

    lease_seconds: float
    heartbeat_seconds: float


class Registration:
    """Keeps one worker registered with one coordinator until `leave`."""

    def __init__(self, coordinator: str, worker: WorkerInfo, tls: TlsConfig | None = None) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._tls = tls
        self._use(open_aio_channel(coordinator, tls))

    def _use(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = registry_pb2_grpc.RegistryServiceStub(channel)

    async def _reopen_channel(self) -> None:
        """After a failure: with TLS, the certificate files may have changed meanwhile."""
        if self._tls is None:
            return
        try:
            channel = open_aio_channel(self._coordinator, self._tls)
        except InvalidRequestError as error:  # perhaps they are being replaced
            logger.warning("registration.kept_old_certificate reason=%s", error.message)
            return
        old = self._channel
        self._use(channel)
        await old.close()

    async def keep(self) -> None:
        """Register and send heartbeats until cancelled, or until an operator drained the worker.

        Raises:
            IncompatibleWorkerError: the coordinator refused the worker, for good.
        """
        is_drained = False
        while not is_drained:
            lease = await self._register()
            is_drained = await self._send_heartbeats(lease)

    async def leave(self) -> None:
        """Tell the coordinator to move what this worker holds, and wait until it has."""
        try:
            await self._stub.Drain(
                registry_pb2.DrainRequest(
                    worker_id=self._worker.worker_id, incarnation=self._worker.incarnation
                ),
                timeout=DRAIN_SECONDS,
            )
        except grpc.aio.AioRpcError as error:
            logger.warning("registration.drain_failed error=%s", error.code().name)
        await self._channel.close()

    async def _register(self) -> Lease:
        is_first_failure = True
        while True:
            try:
                response = await self._try_register()
            except (IncompatibleWorkerError, ProtocolError, CallerError):
                raise
            except ExspecError as error:
                if is_first_failure:
                    logger.info(
                        "registration.waiting coordinator=%s reason=%s",
                        self._coordinator,
                        error.message,
                    )
                is_first_failure = False
                await asyncio.sleep(RETRY_SECONDS)
                await self._reopen_channel()
            else:
                logger.info("registration.joined coordinator=%s", self._coordinator)
                return Lease(response.lease_seconds, response.heartbeat_seconds)

    async def _try_register(self) -> registry_pb2.RegisterResponse:
        request = registry_pb2.RegisterRequest(worker=worker_to_message(self._worker))
        try:
            return await self._stub.Register(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ProtocolError(
                    f"{self._coordinator} serves no workers; --coordinator must be the "
                    "coordinator's --cluster-port, where it has one"
                ) from error
            raise from_call(error) from error

    async def _send_heartbeats(self, lease: Lease) -> bool:
        """Until the coordinator does not know the worker (False), or wants it to stop (True)."""
        request = registry_pb2.HeartbeatRequest(
            worker_id=self._worker.worker_id, incarnation=self._worker.incarnation
        )
        while True:
            await asyncio.sleep(lease.heartbeat_seconds)
            try:
                response = await self._stub.Heartbeat(request, timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                logger.warning("registration.heartbeat_failed error=%s", error.code().name)
                await self._reopen_channel()
                continue
            if not response.is_known:
                logger.info("registration.unknown coordinator=%s", self._coordinator)
                return False
            if response.should_stop:
                logger.info("registration.drained coordinator=%s", self._coordinator)
                return True
