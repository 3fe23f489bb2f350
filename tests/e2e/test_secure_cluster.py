"""Three real processes with TLS everywhere and API keys, set up by the commands of the README."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exspec import AuthenticationError, Client, TlsConfig, UnavailableError
from exspec.cli.child import Child
from exspec.core.ids import Role

PROMPT = "An unusual sentence about zeppelins"
SECONDS = 120


def _exspec(*args, **env):
    command = ("env", *(f"{name}={value}" for name, value in env.items()))
    done = subprocess.run(
        [*command, sys.executable, "-m", "exspec.cli.main", *map(str, args)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


class SecureCluster:
    """The processes, by the name of their role."""

    def __init__(self, folder: Path, target: Path, draft: Path) -> None:
        self.certs = folder / "certs"
        self.keys = folder / "keys"
        self._folder = folder
        self.children: dict[str, Child] = {}
        assert _exspec("certs", self.certs)[0] == 0
        code, told = _exspec("keys", "add", "alice", "--file", self.keys)
        assert code == 0
        self.key = told.strip()
        ports = ("--port", 0, "--cluster-port", 0, "--api-keys-file", self.keys)
        self._start("coordinator", None, "coordinator", *ports)
        self.address, self.cluster_address = self._ports("coordinator").splitlines()
        common = ("--coordinator", self.cluster_address, "--dtype", "float64", "--max-model-len",
                  200, "--num-threads", 1)  # fmt: skip
        self._start("target", Role.TARGET, "target_worker", "--model", target, *common)
        self._start("draft", Role.DRAFT, "draft_worker", "--model", draft, *common)

    def files(self, name: str) -> tuple[str, ...]:
        return (
            "--ssl-certfile", str(self.certs / f"{name}.pem"),
            "--ssl-keyfile", str(self.certs / f"{name}-key.pem"),
            "--ssl-ca-certs", str(self.certs / "ca.pem"),
        )  # fmt: skip

    def client(self, **changes) -> Client:
        access = {"api_key": self.key, "tls": TlsConfig(self.certs / "ca.pem")} | changes
        return Client(self.address, **access)

    def worker_address(self, name: str) -> str:
        return self._ports(name)

    def log(self, name: str) -> str:
        return self.children[name].log_path.read_text()

    def stop(self) -> dict[str, int | None]:
        """Workers first, as in a drain; their exit codes."""
        for name in ("draft", "target", "coordinator"):
            child = self.children[name]
            if child.is_running:
                child.send(signal.SIGTERM)
                _until(lambda child=child: not child.is_running)
        return {name: child.exit_code for name, child in self.children.items()}

    def kill(self) -> None:
        for child in self.children.values():
            child.send(signal.SIGKILL)

    def _start(self, name: str, role: Role | None, module: str, *args: object) -> None:
        child = Child(name, role, self._folder)
        files = self.files("coordinator" if role is None else "worker")
        child.start(
            [sys.executable, "-P", "-m", module, "--log-level", "debug", "--port-file",
             str(child.port_file), *files, *map(str, args)]
        )  # fmt: skip
        self.children[name] = child

    def _ports(self, name: str) -> str:
        child = self.children[name]
        _until(lambda: child.port_file.exists() or not child.is_running)
        assert child.is_running, child.log_tail()
        return child.port_file.read_text()


def _until(holds) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, target_dir, noise_dir):
    made = SecureCluster(tmp_path_factory.mktemp("secure"), target_dir, noise_dir)
    with made.client() as client:
        client.wait_until_ready(SECONDS)
        _until(lambda: len(client.cluster_status().workers) == 2)
    yield made
    made.kill()


def test_what_is_generated_is_plain_decoding(cluster, plain):
    with cluster.client() as client:
        result = client.generate(PROMPT, max_tokens=24, num_speculative_tokens=4)
        assert result.token_ids == plain(client.tokenize(PROMPT).token_ids, 24)
        assert result.speculation.num_draft_tokens > 0


def test_without_key_or_certificate_nobody_is_served(cluster):
    with cluster.client(api_key=None) as client, pytest.raises(AuthenticationError):
        client.generate("x", max_tokens=1)
    with cluster.client(tls=None) as client, pytest.raises(UnavailableError):
        client.generate("x", max_tokens=1)


def test_the_commands_reach_every_port(cluster):
    ca = cluster.files("operator")[4:]
    at = ("--address", cluster.address, *ca)
    code, told = _exspec("generate", *at, "--no-chat", "--max-tokens", 2, "x",
                         EXSPEC_API_KEY=cluster.key)  # fmt: skip
    assert code == 0, told
    assert _exspec("status", *at)[0] == 2
    assert _exspec("health", *at)[0] == 0
    operator = ("--address", cluster.cluster_address, *cluster.files("operator"))
    assert _exspec("status", *operator)[0] == 0
    assert _exspec("health", *operator)[0] == 0
    target = ("--address", cluster.worker_address("target"))
    named = ("--ssl-server-name", "worker.exspec.internal")
    assert _exspec("health", *target, *cluster.files("worker"), *named)[0] == 0
    assert _exspec("health", *target, *ca, *named)[0] == 1


def test_a_worker_that_uses_the_clients_port_is_told_so(cluster):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "draft_worker", "--model", "ngram", "--coordinator",
         cluster.address, *cluster.files("worker")],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--cluster-port" in done.stderr


def test_the_logs_tell_no_prompt_and_no_key(cluster):
    """At the level that tells most. To be run after what the other tests had served."""
    for name in cluster.children:
        log = cluster.log(name)
        assert log
        for secret in (PROMPT, "zeppelins", cluster.key):
            assert secret not in log


def test_workers_leave_through_mutual_tls_when_they_are_stopped(cluster):
    """The last test of the module: it stops the cluster."""
    assert cluster.stop() == {"coordinator": 0, "target": 0, "draft": 0}
    for name in ("target", "draft"):
        assert "worker.draining" in cluster.log(name)
        assert "drain_failed" not in cluster.log(name)
