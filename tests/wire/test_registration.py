"""A worker joins, keeps its lease and leaves, against a coordinator that misbehaves."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import asyncio
import contextlib

import pytest

from exspec.core.cluster import WorkerInfo
from exspec.core.errors import IncompatibleWorkerError, ProtocolError, UnavailableError
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts
from exspec.v1 import registry_pb2, registry_pb2_grpc
from exspec.wire import registration
from exspec.wire.registration import Registration
from exspec.wire.server import RpcServer

REGISTRY = "exspec.v1.RegistryService"


class FakeCoordinator(registry_pb2_grpc.RegistryServiceServicer):
    """Notes what it is asked, answers what the test says."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.refusals: list[Exception] = []
        self.is_known = True
        self.is_drained = False

    async def Register(self, request, context):
        assert request.worker.worker_id == "w"
        self.events.put_nowait("register")
        if self.refusals:
            raise self.refusals.pop(0)
        return registry_pb2.RegisterResponse(lease_seconds=0.1, heartbeat_seconds=0.01)

    async def Heartbeat(self, request, context):
        assert (request.worker_id, request.incarnation) == ("w", "i")
        self.events.put_nowait("heartbeat")
        return registry_pb2.HeartbeatResponse(is_known=self.is_known, should_stop=self.is_drained)

    async def Drain(self, request, context):
        assert (request.worker_id, request.incarnation) == ("w", "i")
        self.events.put_nowait("drain")
        return registry_pb2.DrainResponse()

    async def expect(self, event: str) -> None:
        """Wait until it was asked this; other events before it are ignored."""
        async with asyncio.timeout(60):
            while await self.events.get() != event:
                pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.02)


def _worker() -> WorkerInfo:
    model = ModelFacts("m", "a", 1, 1, "", 8, (), "float32", "cpu", 1, "f")
    return WorkerInfo(WorkerId("w"), "i", Role.DRAFT, "127.0.0.1:1", 1, model)


@contextlib.asynccontextmanager
async def _coordinating(coordinator: FakeCoordinator, port: int = 0):
    server = RpcServer([REGISTRY])
    address = server.bind("127.0.0.1", port, allow_insecure=False)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(coordinator, server.grpc_server)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def _keeping(address: str):
    kept = Registration(address, _worker())
    task = asyncio.create_task(kept.keep())
    try:
        yield kept, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kept.leave()


async def test_it_waits_for_a_coordinator_that_starts_later():
    coordinator = FakeCoordinator()
    async with _coordinating(coordinator) as address:
        pass
    async with _keeping(address) as (_kept, task):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.1)
        port = int(address.rpartition(":")[2])
        async with _coordinating(coordinator, port):
            await coordinator.expect("register")
            await coordinator.expect("heartbeat")


async def test_it_registers_again_when_it_is_not_known():
    coordinator = FakeCoordinator()
    async with _coordinating(coordinator) as address, _keeping(address):
        await coordinator.expect("register")
        await coordinator.expect("heartbeat")
        coordinator.is_known = False
        await coordinator.expect("register")


async def test_it_ends_when_an_operator_drained_the_worker():
    coordinator = FakeCoordinator()
    async with _coordinating(coordinator) as address, _keeping(address) as (_kept, task):
        await coordinator.expect("heartbeat")
        coordinator.is_drained = True
        await asyncio.wait_for(task, 5)


async def test_it_lives_through_a_coordinator_that_restarts():
    first, second = FakeCoordinator(), FakeCoordinator()
    second.is_known = False
    async with contextlib.AsyncExitStack() as stack:
        async with _coordinating(first) as address:
            await stack.enter_async_context(_keeping(address))
            await first.expect("heartbeat")
        async with _coordinating(second, int(address.rpartition(":")[2])):
            await second.expect("heartbeat")
            await second.expect("register")


@pytest.mark.parametrize("refusal", [IncompatibleWorkerError("no"), ProtocolError("no")])
async def test_it_stops_when_it_is_refused(refusal):
    coordinator = FakeCoordinator()
    coordinator.refusals.append(refusal)
    async with _coordinating(coordinator) as address, _keeping(address) as (_kept, task):
        with pytest.raises(type(refusal), match="no"):
            await asyncio.wait_for(task, 5)


async def test_it_tries_again_when_it_is_told_to():
    coordinator = FakeCoordinator()
    coordinator.refusals.extend([UnavailableError("not yet"), RuntimeError("a bug over there")])
    async with _coordinating(coordinator) as address, _keeping(address):
        for _ in range(3):
            await coordinator.expect("register")
        await coordinator.expect("heartbeat")


async def test_leaving_drains():
    coordinator = FakeCoordinator()
    async with _coordinating(coordinator) as address:
        async with _keeping(address):
            await coordinator.expect("heartbeat")
        await coordinator.expect("drain")


async def test_leaving_a_coordinator_that_is_gone_is_quick():
    kept = Registration("127.0.0.1:1", _worker())
    await asyncio.wait_for(kept.leave(), 5)
