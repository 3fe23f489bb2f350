"""A cluster to be treated badly: a real coordinator process, and workers forked by a zygote."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from exspec.cli.child import Child
from exspec.cli.cluster_plan import COORDINATOR, ClusterPlan
from exspec.client import AsyncClient
from exspec.core.cluster import ClusterStatus, WorkerState
from exspec.core.errors import ExspecError
from exspec.core.ids import Role
from exspec.runtime.clock import monotonic
from tests.chaos.forks import Fork, Zygote
from tests.chaos.models import MAX_LENGTH, Pair

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
NUM_COMMAND_WORDS = 4
"""Of a worker's command line before its flags: python -P -m MODULE."""


def make_plan(pair: Pair, folder: Path, **changes: object) -> ClusterPlan:
    """A float64 cluster of short sequences, one thread per process, K fixed."""
    settings: dict[str, object] = {
        "dtype": "float64", "max_model_len": MAX_LENGTH, "num_threads": 1, "max_num_seqs": 4,
        "num_speculative_tokens": 3, "log_dir": folder, "log_level": "warning", **changes,
    }  # fmt: skip
    return ClusterPlan(model=str(pair.target), draft_model=str(pair.draft), **settings)  # type: ignore[arg-type]


@dataclass(slots=True)
class Worker:
    """A worker and its latest process."""

    name: str
    role: Role
    fork: Fork
    port_file: Path

    @property
    def address(self) -> str | None:
        """host:port it listens on, once it has told."""
        try:
            return self.port_file.read_text().strip() or None
        except FileNotFoundError:
            return None


class ChaosCluster:
    """Owns the processes; all are gone after `close`. Logs are NAME.log in the plan's folder."""

    def __init__(self, plan: ClusterPlan, zygote: Zygote) -> None:
        assert plan.log_dir is not None
        self.plan = plan
        self._folder = plan.log_dir
        self._zygote = zygote
        self.workers: dict[str, Worker] = {}
        self.coordinator = Child(COORDINATOR, None, self._folder)
        self._address = ""

    @property
    def address(self) -> str:
        """host:port of the coordinator; known after `start`, and the same after a restart."""
        return self._address

    async def start(self) -> None:
        """Start the coordinator, or start it again once it has ended."""
        command = self.plan.coordinator_command(self.coordinator.port_file)
        if self._address:
            command[command.index("--port") + 1] = self._address.rpartition(":")[2]
        self.coordinator.start(command)
        await until(lambda: self.coordinator.address)
        self._address = self.coordinator.address or ""

    def start_worker(self, role: Role, name: str, *flags: str, coordinator: str = "") -> Worker:
        """Fork a worker under this name; a process it had before must have ended."""
        earlier = self.workers.get(name)
        assert earlier is None or not earlier.fork.is_running
        port_file = self._folder / f"{name}.port"
        port_file.unlink(missing_ok=True)
        module, arguments = self._command(role, name, coordinator or self.address, port_file)
        fork = self._zygote.fork(module, [*arguments, *flags], self._folder / f"{name}.log")
        self.workers[name] = Worker(name, role, fork, port_file)
        return self.workers[name]

    def preload(self) -> None:
        """Let the zygote load both models, so that workers start at once."""
        for role in Role:
            self._zygote.load(*self._command(role, "", "127.0.0.1:1", self._folder / "none"))

    async def until_ready(self, *names: str) -> None:
        """Wait until these workers take rows, each in its latest life."""
        async with AsyncClient(self.address) as client:
            await until_status(client, lambda status: set(names) <= ready_names(status))

    def close(self) -> None:
        """Kill them all."""
        for worker in self.workers.values():
            worker.fork.kill()
        if self._address:
            self.coordinator.send(signal.SIGKILL)
            while self.coordinator.is_running:
                time.sleep(POLL_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _command(
        self, role: Role, name: str, coordinator: str, port_file: Path
    ) -> tuple[str, list[str]]:
        command = self.plan.worker_command(role, name, coordinator, port_file)
        return command[NUM_COMMAND_WORDS - 1], command[NUM_COMMAND_WORDS:]


def ready_names(status: ClusterStatus) -> set[str]:
    """Workers that take rows."""
    return {w.worker.worker_id for w in status.workers if w.state is WorkerState.READY}


def is_empty(status: ClusterStatus) -> bool:
    """Whether the coordinator holds no sequence, and knows of none on a worker."""
    return not (
        status.num_running
        or status.num_waiting
        or any(worker.num_sequences for worker in status.workers)
    )


async def until(holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until it holds; TimeoutError when it does not come to."""
    deadline = monotonic() + seconds
    while not holds():
        if monotonic() > deadline:
            raise TimeoutError("it did not come to hold")
        await asyncio.sleep(POLL_SECONDS)


async def until_status(
    client: AsyncClient,
    holds: Callable[[ClusterStatus], object],
    seconds: float = PATIENCE_SECONDS,
) -> ClusterStatus:
    """Wait until the cluster's status is as wanted; TimeoutError shows what it was at the end."""
    deadline = monotonic() + seconds
    status = None
    while True:
        try:
            status = await client.cluster_status(timeout=5)
        except ExspecError:
            status = None
        if status is not None and holds(status):
            return status
        if monotonic() > deadline:
            raise TimeoutError(f"it did not come to hold: {status}")
        await asyncio.sleep(POLL_SECONDS)
