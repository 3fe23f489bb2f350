"""The end of a worker process: what happens in which order, and what a second signal does."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from exspec.core.cluster import WorkerInfo
from exspec.core.ids import Role
from exspec.core.models import ModelFacts
from exspec.runtime.settings import WorkerSettings
from exspec.v1 import registry_pb2, registry_pb2_grpc
from exspec.wire import worker_process
from exspec.wire.health import probe
from exspec.wire.process import StopSignals, stop_signals
from exspec.wire.server import RpcServer
from exspec.wire.worker_process import Ending, Identity, run_worker

SERVICE = "exspec.v1.DraftService"
MODEL = ModelFacts("m", "a", 1, 1, "", 8, (), "float32", "cpu", 1, "f")


class StubRole:
    """No model."""

    service_name = SERVICE

    def __init__(self, identity):
        self.identity = identity
        self.thread = None

    def add_to(self, server, thread):
        self.thread = thread

    def load(self):
        pass

    def describe(self, address):
        identity = self.identity
        return WorkerInfo(
            identity.worker_id, identity.incarnation, identity.role, address, 1, MODEL
        )


class Registry(registry_pb2_grpc.RegistryServiceServicer):
    """Lets a worker leave when the test says so."""

    def __init__(self):
        self.address = ""
        self.registered = asyncio.Event()
        self.is_drained = False
        self.leaving = asyncio.Event()
        self.may_leave = asyncio.Event()

    async def Register(self, request, context):
        self.address = request.worker.address
        self.registered.set()
        return registry_pb2.RegisterResponse(lease_seconds=1, heartbeat_seconds=0.01)

    async def Heartbeat(self, request, context):
        return registry_pb2.HeartbeatResponse(is_known=True, should_stop=self.is_drained)

    async def Drain(self, request, context):
        self.leaving.set()
        await self.may_leave.wait()
        return registry_pb2.DrainResponse()


@contextlib.asynccontextmanager
async def running(monkeypatch):
    """A worker in this process, registered; and the signals it is told."""
    registry, signals = Registry(), StopSignals()
    monkeypatch.setattr(worker_process, "stop_signals", lambda: signals)
    server = RpcServer(["exspec.v1.RegistryService"])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(registry, server.grpc_server)
    await server.start()
    settings = WorkerSettings(_cli_parse_args=[], coordinator=address)  # type: ignore[call-arg]
    identity = Identity(Role.DRAFT, "w")
    role = StubRole(identity)
    task = asyncio.create_task(run_worker(role, identity, settings))
    try:
        await asyncio.wait_for(registry.registered.wait(), 60)
        yield registry, signals, task, role
    finally:
        registry.may_leave.set()
        signals.note()
        await asyncio.wait({task}, timeout=60)
        await server.stop(0)


async def _is_ready(registry):
    return await asyncio.to_thread(probe, registry.address, SERVICE, timeout_seconds=5)


async def test_a_worker_that_is_told_to_stop_is_not_ready_while_its_rows_are_moved(monkeypatch):
    async with running(monkeypatch) as (registry, signals, task, _):
        assert await _is_ready(registry)
        signals.note()
        await asyncio.wait_for(registry.leaving.wait(), 10)
        assert not await _is_ready(registry)
        assert not task.done()
        registry.may_leave.set()
        assert await asyncio.wait_for(task, 10) is Ending.DRAINED


async def test_a_worker_that_an_operator_drained_leaves_and_ends_well(monkeypatch, caplog):
    caplog.set_level("INFO")
    async with running(monkeypatch) as (registry, _, task, _):
        registry.may_leave.set()
        registry.is_drained = True
        assert await asyncio.wait_for(task, 10) is Ending.DRAINED
        assert registry.leaving.is_set()
    assert "worker.draining reason='an operator drained it'" in caplog.messages


async def test_a_second_signal_does_not_wait_for_rows_to_be_moved(monkeypatch):
    async with running(monkeypatch) as (registry, signals, task, _):
        signals.note()
        await asyncio.wait_for(registry.leaving.wait(), 10)
        signals.note()
        await asyncio.wait_for(task, 10)
        assert not registry.may_leave.is_set()


async def test_signals_are_told_apart():
    signals = stop_signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signals.asked.wait(), 10)
        assert not signals.insisted.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(signals.insisted.wait(), 10)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


BUSY_WORKER = """
import logging, sys, time
sys.path.insert(0, {folder!r})
from test_worker_process import StubRole
from exspec.core.ids import Role
from exspec.runtime.settings import WorkerSettings
from exspec.wire.worker_process import Identity, run_process

class Busy(StubRole):
    def load(self):
        self.thread.post(time.sleep, 120)

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
identity = Identity(Role.DRAFT, "w")
settings = WorkerSettings(_cli_parse_args=[], coordinator="127.0.0.1:1")
sys.exit(run_process(Busy(identity), identity, settings))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_process_that_is_in_the_middle_of_a_pass(number):
    code = BUSY_WORKER.format(folder=os.path.dirname(__file__))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stdout:
                if "worker.ready" in line:
                    break
            process.send_signal(number)
            for line in process.stdout:
                if "worker.draining" in line:
                    break
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, errors


def test_a_process_that_ends_well_does_so_though_it_is_told_again():
    code = (
        "import os, signal\nfrom exspec.wire.process import ignore_stop_signals\n"
        "ignore_stop_signals()\n"
        "for number in (signal.SIGTERM, signal.SIGINT):\n    os.kill(os.getpid(), number)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
