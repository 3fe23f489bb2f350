"""`docker compose up cluster` on a real engine: served from outside, scaled and harmed under load.

The tests share one project and run in this order; each leaves one target and one draft.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from exspec import Client, TlsConfig, UnavailableError
from exspec.core.cluster import WorkerState
from exspec.core.peer_roles import PeerRole
from exspec.wire.health import probe
from tests.compose.load import NUM_SPECULATIVE_TOKENS, PROMPTS, Load, generate
from tests.compose.stack import ROOT, until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]

PROBE_SECONDS = 10.0
NUM_LONG_TOKENS = 200
"""So many that the coordinator is gone before they are there."""


@pytest.fixture
def load(stack, truth):
    with Load(stack.client, truth) as running:
        running.go_on()
        yield running


def only(containers):
    (container,) = containers
    return container


def wait_for_the_screen(stack):
    """Wait until it shows figures; its container."""
    container = only(stack.containers("cluster"))
    until(
        "the screen shows figures",
        lambda: stack.run("logs", "--tail", "1", container).startswith("requests"),
    )
    return container


def test_speculation_says_what_plain_decoding_says(stack, truth):
    with stack.client() as client:
        before = client.cluster_status().totals.num_draft_tokens
        for prompt, tokens in truth.items():
            assert generate(client, prompt, NUM_SPECULATIVE_TOKENS) == tokens
        assert client.cluster_status().totals.num_draft_tokens > before


def test_the_screen_shows_what_to_do_and_it_works(stack):
    shown = stack.run("logs", wait_for_the_screen(stack))
    assert f"clients: {stack.address} (TLS)" in shown
    inside, outside = [line.strip() for line in shown.splitlines() if "exspec generate" in line]
    assert inside == 'docker compose exec cluster exspec generate "Why is the sky blue?"'
    said = stack.compose(
        "exec", "-T", "cluster", "exspec", "generate", "Why is the sky blue?", "--max-tokens", "4"
    )
    assert said.strip()
    assert "docker compose cp coordinator:/certs/ca.pem exspec-ca.pem" in shown
    exspec = [sys.executable, "-m", "exspec.cli.main"]
    told = subprocess.run(
        f"{outside.replace('exspec generate', subprocess.list2cmdline(exspec) + ' generate', 1)}"
        " --max-tokens 4",
        shell=True, cwd=stack.ca_file.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout == said


@pytest.mark.parametrize("service", ["coordinator", "target", "draft", "cluster"])
def test_containers_run_with_few_rights(stack, service):
    facts = stack.inspect(only(stack.containers(service)))
    assert facts["Config"]["User"] == "2000:0"
    assert facts["HostConfig"]["ReadonlyRootfs"]
    assert facts["HostConfig"]["CapDrop"] == ["ALL"]
    assert facts["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"]
    who = stack.compose("exec", "-T", service, "python", "-c", "import os; print(os.getuid())")
    assert who.strip() == "2000"


def test_nothing_answers_without_a_certificate(stack):
    with (
        Client(stack.address, connect_timeout=PROBE_SECONDS, max_retries=0) as client,
        pytest.raises(UnavailableError),
    ):
        client.list_models()
    ports = {"coordinator": 50051, "target": 50061, "draft": 50061}
    roles = {"coordinator": PeerRole.COORDINATOR}
    own = stack.ca_file.parent
    for name in ("operator.pem", "operator-key.pem"):
        stack.compose("cp", f"cluster:/certs/{name}", str(own / name))
    for service, port in ports.items():
        networks = stack.inspect(only(stack.containers(service)))["NetworkSettings"]["Networks"]
        address = f"{only(networks.values())['IPAddress']}:{port}"
        name = roles.get(service, PeerRole.WORKER).value
        stranger = TlsConfig(stack.ca_file, server_name=name)
        peer = TlsConfig(
            stack.ca_file, own / "operator.pem", own / "operator-key.pem", server_name=name
        )
        for tls, is_let_in in ((None, False), (stranger, False), (peer, True)):
            assert probe(address, "", timeout_seconds=PROBE_SECONDS, tls=tls) == is_let_in


def test_only_the_clients_port_is_published_and_on_loopback(stack):
    published = {
        service: stack.inspect(only(stack.containers(service)))["HostConfig"]["PortBindings"]
        for service in ("coordinator", "target", "draft", "cluster")
    }
    port = stack.address.rpartition(":")[2]
    assert published.pop("coordinator") == {
        "50050/tcp": [{"HostIp": "127.0.0.1", "HostPort": port}]
    }
    assert not any(published.values())


def test_both_pools_grow_and_shrink_under_load(stack, load):
    stack.scale(target=2, draft=2)
    load.go_on()
    stack.scale(target=1, draft=1)
    load.go_on()


def test_killed_workers_cost_no_request(stack, load):
    stack.scale(target=2, draft=2)
    for service in ("draft", "target"):
        killed = stack.containers(service)[0]
        stack.kill(killed)
        stack.run("rm", killed)
        load.go_on()
    stack.wait_for(target=1, draft=1)
    load.go_on()


def test_a_crashed_draft_comes_back_by_itself(stack, load):
    (container,) = stack.containers("draft")
    stack.crash(container)
    load.go_on()
    until("the draft was started again", lambda: stack.inspect(container)["RestartCount"] == 1)
    stack.wait_for(target=1, draft=1)


def test_a_drained_worker_stays_away(stack, load):
    stack.scale(target=1, draft=2)
    with stack.client() as client:
        status = client.cluster_status()
    worker_id = next(
        worker.worker.worker_id
        for worker in status.workers
        if worker.state is WorkerState.READY and "draft" in worker.worker.worker_id
    )
    drain = ("exspec", "drain", worker_id, "--address", "coordinator:50051")
    stack.compose("exec", "-T", "cluster", *drain)
    until("a draft has left", lambda: "exited" in map(stack.state, stack.containers("draft")))
    gone = next(name for name in stack.containers("draft") if stack.state(name) == "exited")
    assert stack.exit_code(gone) == 0
    stack.wait_for(target=1, draft=1)
    load.go_on()
    stack.run("rm", gone)  # or scaling would start it again


def test_a_crashed_coordinator_loses_no_request(stack, load):
    (container,) = stack.containers("coordinator")
    with stack.client() as client:
        plain = generate(client, PROMPTS[0], 0, NUM_LONG_TOKENS)
        options = {"max_tokens": NUM_LONG_TOKENS, "ignore_eos": True}
        with client.stream(PROMPTS[0], **options) as stream:
            next(iter(stream.text_deltas()))
            stack.crash(container)
            result = stream.final()
    assert result.num_resumes == 1
    assert result.token_ids == plain
    stack.wait_for(target=1, draft=1)
    assert stack.inspect(container)["RestartCount"] == 1
    load.go_on()
    assert stack.state(only(stack.containers("cluster"))) == "running"


def test_the_screen_fails_when_the_cluster_is_gone_for_good(stack, truth):
    screen = only(stack.containers("cluster"))
    stack.kill(only(stack.containers("coordinator")))
    until("the screen has given up", lambda: stack.state(screen) == "exited")
    assert stack.exit_code(screen) == 1
    stack.up("cluster")
    stack.wait_for(target=1, draft=1)
    wait_for_the_screen(stack)


def test_stop_is_clean(stack, truth):
    services = ("coordinator", "target", "draft", "cluster")
    containers = {service: only(stack.containers(service)) for service in services}
    stack.compose("stop")
    assert {
        service: stack.exit_code(name) for service, name in containers.items()
    } == dict.fromkeys(services, 0)
    finished = {
        service: stack.inspect(name)["State"]["FinishedAt"] for service, name in containers.items()
    }
    assert max(finished, key=finished.__getitem__) == "coordinator"


def test_nothing_is_left_behind(stack):
    stack.down()
    label = f"label=com.docker.compose.project={stack.project}"
    for kind in ("container", "network", "volume"):
        everything = ["--all"] if kind == "container" else []
        assert not stack.run(kind, "ls", *everything, "--quiet", "--filter", label)


def test_up_hands_on_the_exit_code_of_the_screen(stack):
    """A cluster without a target never gets ready: `up` says so with its exit code."""
    command = ["docker", "compose", "-p", stack.project, "up", "--abort-on-container-failure"]
    done = subprocess.run(
        [*command, "--scale", "target=0", "--scale", "draft=0", "cluster"],
        env={**stack.environment, "EXSPEC_START_SECONDS": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "waiting: no target worker has joined" in done.stdout
