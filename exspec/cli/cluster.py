"""A whole cluster as child processes of this one: start, wait until it serves, watch, stop.

Used by `exspec up`, `exspec demo`, benchmarks and end-to-end tests. Prints nothing; progress is
told to whoever asks for it.

    with LocalCluster(ClusterPlan()) as cluster:
        Client(cluster.address).generate("Hello")
"""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from exspec.cli.child import Child
from exspec.cli.cluster_plan import COORDINATOR, HOST, ClusterPlan
from exspec.cli.warm_up import ReadyCheck, WarmUp
from exspec.core.errors import RequestCancelledError, UnavailableError
from exspec.core.ids import Role
from exspec.runtime.clock import monotonic

POLL_SECONDS = 0.05
READY_SECONDS = 1800.0
STOP_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """`name` (a process, or "cluster") has got to `phase`; `detail` may say more."""

    name: str
    phase: str
    detail: str = ""


def ignore_progress(progress: Progress) -> None:
    """For callers who do not care."""


class LocalCluster:
    """The processes. Owns them: none is left running after `stop`, or after this process ends."""

    def __init__(
        self, plan: ClusterPlan, *, on_progress: Callable[[Progress], None] = ignore_progress
    ) -> None:
        self.plan = plan
        self._tell = on_progress
        self._children: dict[str, Child] = {}
        self._known_dead: set[str] = set()
        self._stop_requested = threading.Event()
        self._folder = plan.log_dir
        self._counts = {Role.TARGET: 0, Role.DRAFT: 0}

    @property
    def address(self) -> str:
        """host:port of the coordinator; known after `start`."""
        return self.addresses[COORDINATOR]

    @property
    def addresses(self) -> dict[str, str]:
        """host:port by process name, of those that have told."""
        found = {name: child.address for name, child in self._children.items()}
        return {name: address for name, address in found.items() if address}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, of those that run."""
        return {name: child.pid for name, child in self._children.items() if child.is_running}

    @property
    def log_dir(self) -> Path:
        """Where the logs are: NAME.log."""
        assert self._folder is not None, "known after start()"
        return self._folder

    def start(self) -> None:
        """Start all processes; returns when the coordinator listens.

        Raises:
            UnavailableError: the port is taken.
            ChildDiedError: the coordinator could not start.
            RequestCancelledError: `request_stop` was called.
        """
        if self.plan.port:
            require_free_port(self.plan.port)
        self._make_folder()
        atexit.register(self.kill_all)
        coordinator = Child(COORDINATOR, None, self.log_dir)
        self._start(coordinator, self.plan.coordinator_command(coordinator.port_file))
        self._wait(lambda: coordinator.address is not None)
        self._tell(Progress(COORDINATOR, "listening", self.address))
        for role, number in (
            (Role.TARGET, self.plan.num_targets),
            (Role.DRAFT, self.plan.num_drafts),
        ):
            for _ in range(number):
                self.add_worker(role)

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until all workers serve and a warm-up generation has succeeded.

        Raises:
            UnavailableError: time is up; says what is missing.
            ChildDiedError: a process ended before that.
            RequestCancelledError: `request_stop` was called.
        """
        deadline = monotonic() + timeout_seconds
        with ReadyCheck(self.address, self._worker_names(), self._tell_phase) as check:
            self._wait(check.is_ready, deadline, check.missing)
        self._tell(Progress("cluster", "warming up"))
        with WarmUp(self.address, self.plan.num_targets) as warm_up:
            self._wait(warm_up.is_done, deadline, lambda: "the warm-up did not end")
        self._tell(Progress("cluster", "ready", self.address))

    def add_worker(self, role: Role) -> str:
        """Start one more worker; its name."""
        name = f"{role.value}-{self._counts[role]}"
        self._counts[role] += 1
        self.restart_worker(name, role)
        return name

    def restart_worker(self, name: str, role: Role) -> None:
        """Start a worker under this name, once an earlier one has ended."""
        earlier = self._children.get(name)
        if earlier is not None:
            _wait_until(lambda: not earlier.is_running, STOP_GRACE_SECONDS)
            earlier.send(signal.SIGKILL)
        child = Child(name, role, self.log_dir)
        command = self.plan.worker_command(role, name, self.address, child.port_file)
        self._start(child, command)

    def restart_coordinator(self) -> None:
        """Start the coordinator again where it was, once the earlier one has ended.

        Raises:
            ChildDiedError: it could not start.
        """
        port = int(self.address.rpartition(":")[2])
        earlier = self._children[COORDINATOR]
        _wait_until(lambda: not earlier.is_running, STOP_GRACE_SECONDS)
        earlier.send(signal.SIGKILL)
        child = Child(COORDINATOR, None, self.log_dir)
        plan = replace(self.plan, port=port)
        self._start(child, plan.coordinator_command(child.port_file))
        _wait_until(lambda: child.address is not None or not child.is_running, READY_SECONDS)
        if not child.is_running:
            raise child.died()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a process a signal."""
        self._children[name].send(number)

    def is_running(self, name: str) -> bool:
        """Whether a process has not ended."""
        return self._children[name].is_running

    def new_deaths(self) -> list[Child]:
        """Processes that have ended since this was last asked."""
        dead = [
            child
            for name, child in self._children.items()
            if name not in self._known_dead and not child.is_running
        ]
        self._known_dead.update(child.name for child in dead)
        return dead

    def can_serve(self) -> bool:
        """Whether the coordinator and at least one target run."""
        running = [child for child in self._children.values() if child.is_running]
        has_target = any(child.role is Role.TARGET for child in running)
        return has_target and any(child.role is None for child in running)

    def request_stop(self) -> None:
        """Make `start` and `wait_ready` give up; safe in a signal handler."""
        self._stop_requested.set()

    def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """SIGTERM to the workers, then to the coordinator; SIGKILL to what outlives its grace."""
        children = list(self._children.values())
        self._terminate([child for child in children if child.role is not None], grace_seconds)
        self._terminate([child for child in children if child.role is None], grace_seconds)
        self.kill_all()
        _wait_until(lambda: not self.pids, grace_seconds)
        atexit.unregister(self.kill_all)

    def kill_all(self) -> None:
        """SIGKILL to all, at once."""
        for child in self._children.values():
            child.send(signal.SIGKILL)

    def remove_logs(self) -> None:
        """Remove the logs, if the plan named no folder for them."""
        if self.plan.log_dir is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if exc is None:
            self.remove_logs()

    def _start(self, child: Child, command: list[str]) -> None:
        child.start(command)
        self._children[child.name] = child
        self._known_dead.discard(child.name)
        self._tell(Progress(child.name, "starting", f"pid {child.pid}"))

    def _make_folder(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="exspec-"))
        self._folder.mkdir(parents=True, exist_ok=True)

    def _worker_names(self) -> tuple[str, ...]:
        return tuple(name for name, child in self._children.items() if child.role is not None)

    def _tell_phase(self, name: str, phase: str, detail: str) -> None:
        self._tell(Progress(name, phase, detail))

    def _wait(
        self,
        is_done: Callable[[], bool],
        deadline: float | None = None,
        missing: Callable[[], str] = lambda: "",
    ) -> None:
        """Until it is done; raises when a process dies, time is up, or a stop was requested."""
        while True:
            if self._stop_requested.is_set():
                raise RequestCancelledError("stopped while starting")
            for child in self.new_deaths():
                raise child.died()
            if is_done():
                return
            if deadline is not None and monotonic() > deadline:
                raise UnavailableError(f"the cluster is not ready in time: {missing()}")
            time.sleep(POLL_SECONDS)

    def _terminate(self, children: list[Child], grace_seconds: float) -> None:
        for child in children:
            child.send(signal.SIGTERM)
        _wait_until(lambda: not any(child.is_running for child in children), grace_seconds)


def require_free_port(port: int) -> None:
    """UnavailableError if something listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UnavailableError(
                f"port {port} of {HOST} cannot be taken ({error.strerror}): stop what uses it, or "
                "choose another with --port (0 takes a free one)"
            ) from error


def _wait_until(is_done: Callable[[], bool], seconds: float) -> None:
    deadline = monotonic() + seconds
    while not is_done() and monotonic() < deadline:
        time.sleep(POLL_SECONDS)
