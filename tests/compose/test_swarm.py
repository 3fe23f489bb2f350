"""The Swarm stack on a swarm of one node: deployed, asked, scaled, removed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from exspec import AuthenticationError, Client, TlsConfig
from exspec.cli.main import app
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role
from tests.compose.load import NUM_SPECULATIVE_TOKENS, PROMPTS, generate
from tests.compose.stack import PATIENCE_SECONDS, ROOT, environment_of, free_port, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

STACK = "exspec-test"


class Swarm:
    """The stack file beside fresh certificates, deployed on this engine."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        shutil.copy(ROOT / "deploy" / "swarm" / "stack.yaml", folder)
        self._exspec("certs", str(folder / "certs"))
        keys = folder / "certs" / "api-keys"
        self.api_key = self._exspec("keys", "add", "me", "--file", str(keys)).strip()
        self._environment = environment_of(self.address)

    def run(self, *command, is_checked=True):
        done = subprocess.run(
            ["docker", *command], env=self._environment, cwd=self.folder, capture_output=True,
            text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert not is_checked or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def client(self, api_key):
        tls = TlsConfig(self.folder / "certs" / "ca.pem")
        return Client(self.address, api_key=api_key, tls=tls)

    def wait_for(self, num_targets):
        with self.client(self.api_key) as client:
            client.wait_until_ready(PATIENCE_SECONDS)
            until(f"{num_targets} targets", lambda: num_ready(client, Role.TARGET) == num_targets)
            until("a draft", lambda: num_ready(client, Role.DRAFT) == 1)

    def num_containers(self):
        label = f"label=com.docker.stack.namespace={STACK}"
        return len(self.run("ps", "-aq", "--filter", label).split())

    @staticmethod
    def _exspec(*arguments):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout


def num_ready(client, role):
    workers = client.cluster_status(timeout=PATIENCE_SECONDS).workers
    return sum(w.worker.role is role and w.state is WorkerState.READY for w in workers)


@pytest.fixture(scope="module")
def swarm(image, tmp_path_factory, request):
    swarm = Swarm(tmp_path_factory.mktemp("swarm"))
    if swarm.run("info", "--format", "{{.Swarm.LocalNodeState}}").strip() != "inactive":
        pytest.fail("this engine is part of a swarm: the test would join and leave it")
    num_failed = request.session.testsfailed
    swarm.run("swarm", "init", "--advertise-addr", "127.0.0.1")
    try:
        swarm.run("stack", "deploy", "--resolve-image=never", "-c", "stack.yaml", STACK)
        swarm.wait_for(1)
        yield swarm
    finally:
        if request.session.testsfailed > num_failed:
            for service in ("coordinator", "target", "draft"):
                print(swarm.run("service", "logs", f"{STACK}_{service}", is_checked=False))  # noqa: T201
        swarm.run("stack", "rm", STACK, is_checked=False)
        until("all containers are gone", lambda: not swarm.num_containers())
        swarm.run("swarm", "leave", "--force", is_checked=False)
        swarm.run("volume", "rm", f"{STACK}_hf-cache", is_checked=False)


def test_the_stack_serves_whoever_has_a_key(swarm):
    with swarm.client(swarm.api_key) as client:
        for prompt in PROMPTS:
            plain = generate(client, prompt, 0)
            assert generate(client, prompt, NUM_SPECULATIVE_TOKENS) == plain
    with swarm.client(None) as stranger, pytest.raises(AuthenticationError):
        stranger.list_models()


def test_the_stack_scales(swarm):
    for num_targets in (2, 1):
        swarm.run("service", "scale", "--detach", f"{STACK}_target={num_targets}")
        swarm.wait_for(num_targets)
    with swarm.client(swarm.api_key) as client:
        assert generate(client, PROMPTS[0], NUM_SPECULATIVE_TOKENS) == generate(
            client, PROMPTS[0], 0
        )
