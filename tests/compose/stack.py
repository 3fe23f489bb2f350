"""One Compose project under test: starts it, looks at it, harms it, and takes it down whole."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exspec import Client, TlsConfig
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
"""Bound of every wait; a machine that is busy with other work is slow, not wrong."""
POLL_SECONDS = 0.2
_KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until it is so; AssertionError says what did not come about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
        threading.Event().wait(POLL_SECONDS)


class Stack:
    """A project of its own on the engine, with small workers of one thread each."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.project = f"exspec-test-{os.getpid()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.ca_file = folder / "exspec-ca.pem"
        self.environment = {**environment_of(self.address), **variables}

    def run(self, *command: str, is_checked: bool = True) -> str:
        """`docker COMMAND`; what it printed."""
        done = subprocess.run(
            ["docker", *command], env=self.environment, cwd=ROOT, capture_output=True,
            text=True, timeout=PATIENCE_SECONDS * 4, check=False,
        )  # fmt: skip
        assert not is_checked or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def compose(self, *command: str, is_checked: bool = True) -> str:
        """`docker compose COMMAND` for this project."""
        return self.run("compose", "-p", self.project, *command, is_checked=is_checked)

    def up(self, *services: str) -> None:
        """Start what is not there, and wait until it serves."""
        self.compose("up", "-d", "--no-recreate", *services)
        self.compose("cp", "coordinator:/certs/ca.pem", str(self.ca_file))
        with self.client() as client:
            client.wait_until_ready(PATIENCE_SECONDS)

    def scale(self, *, target: int, draft: int) -> None:
        """Change how many there are, and wait until so many are ready and none is left over."""
        self.compose("scale", f"target={target}", f"draft={draft}")
        self.wait_for(target=target, draft=draft)

    def wait_for(self, *, target: int, draft: int) -> None:
        """Wait until exactly so many workers are ready."""
        wanted = {Role.TARGET: target, Role.DRAFT: draft}
        with self.client() as client:
            until(f"workers {wanted}", lambda: self._num_ready(client) == wanted)

    def _num_ready(self, client: Client) -> dict[Role, int]:
        workers = [
            worker.worker.role
            for worker in client.cluster_status(timeout=PATIENCE_SECONDS).workers
            if worker.state is WorkerState.READY
        ]
        return {role: workers.count(role) for role in Role}

    def client(self) -> Client:
        """As users outside have it: TLS with the authority's certificate."""
        return Client(self.address, tls=TlsConfig(self.ca_file))

    def containers(self, service: str) -> list[str]:
        """Names of a service's containers, running or not."""
        return self.compose("ps", "-a", "--format", "{{.Name}}", service).split()

    def inspect(self, container: str) -> dict:
        """What the engine knows of a container."""
        (facts,) = json.loads(self.run("inspect", container))
        return facts

    def state(self, container: str) -> str:
        """running, exited …"""
        return self.inspect(container)["State"]["Status"]

    def exit_code(self, container: str) -> int:
        """Of a container that has exited."""
        facts = self.inspect(container)["State"]
        assert facts["Status"] == "exited", facts
        return facts["ExitCode"]

    def kill(self, container: str) -> None:
        """SIGKILL by the engine: it stays away."""
        self.run("kill", container)

    def crash(self, container: str) -> None:
        """SIGKILL from inside, as when memory runs out: the restart policy brings it back."""
        self.run("exec", container, "python", "-c", _KILL_ALL, is_checked=False)

    def down(self) -> None:
        """Remove everything: containers, networks, volumes."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", is_checked=False)

    def print_logs(self) -> None:
        """For whoever looks at a failure."""
        sys.stdout.write(self.compose("logs", "--no-color", "--tail", "60", is_checked=False))
        sys.stdout.write(self.compose("ps", "-a", is_checked=False))


def environment_of(address: str) -> dict[str, str]:
    """For the engine's commands: small workers of one thread each, clients at `address`."""
    return {
        **os.environ,  # noqa: TID251 - the command's own surroundings
        "EXSPEC_PORT": address.rpartition(":")[2],
        "EXSPEC_NUM_THREADS": "1",
        "EXSPEC_MAX_NUM_SEQS": "4",
        "EXSPEC_MAX_MODEL_LEN": "256",
    }


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
