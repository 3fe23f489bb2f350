"""`exspec watch`: what it says while a cluster comes, lives and goes, and how it exits."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from exspec import UnavailableError
from exspec.cli.watch_lines import Look, Readiness, Welcome, live_line, tokens_per_second
from exspec.client.fake import FakeCoordinator
from exspec.core.cluster import ClusterStatus, Totals, WorkerInfo, WorkerState, WorkerStatus
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts

FACTS = ModelFacts("m", "Llama", 8, 8, "", 64, (), "float32", "cpu", 1, "")
STATUS = ClusterStatus("1", True, "m", "exspec", speculation="auto", uptime_seconds=10.0)


def worker(role, state):
    info = WorkerInfo(WorkerId(f"{role.value}-x"), "i", role, "h:1", 8, FACTS)
    return WorkerStatus(info, state)


def look(at_seconds, **totals):
    return Look(replace(STATUS, totals=Totals(**totals)), at_seconds)


def test_a_cluster_gets_its_time_to_start_and_another_to_come_back():
    readiness = Readiness(start_seconds=100, lost_seconds=10, now=0)
    readiness.note_missing("loading", 99)
    assert readiness.note_ready(99.5) == 99.5
    assert readiness.note_ready(200) is None
    readiness.note_missing("gone", 300)
    readiness.note_missing("gone", 309)
    assert readiness.note_ready(309.5) == 9.5
    readiness.note_missing("gone", 400)
    with pytest.raises(UnavailableError, match="not ready for 10 s: gone"):
        readiness.note_missing("gone", 410)


def test_a_cluster_that_never_gets_ready_is_given_up():
    readiness = Readiness(start_seconds=100, lost_seconds=10, now=0)
    with pytest.raises(UnavailableError, match="not ready for 100 s: no target"):
        readiness.note_missing("no target", 100)


def test_the_rate_is_that_between_two_looks():
    before, now = look(5.0, num_generated_tokens=100), look(7.0, num_generated_tokens=130)
    assert tokens_per_second(before, now) == 15.0
    assert tokens_per_second(None, now) == 13.0
    assert tokens_per_second(now, look(9.0, num_generated_tokens=40)) == 4.0  # a new coordinator
    assert tokens_per_second(now, now) == 0.0


def test_the_line_counts_workers_by_role_and_state():
    workers = (
        worker(Role.TARGET, WorkerState.READY),
        worker(Role.TARGET, WorkerState.READY),
        worker(Role.TARGET, WorkerState.DRAINING),
    )
    totals = Totals(num_requests=7, num_failed_requests=1, num_row_rounds=10, num_accepted_tokens=5)
    status = replace(STATUS, workers=workers, totals=totals, num_running=3, num_waiting=2)
    assert live_line(None, Look(status, 0.0)) == (
        "requests 7 (1 failed)   0.0 tokens/s   acceptance length 1.50   running 3   waiting 2   "
        "target 2 ready, 1 draining   draft none"
    )


def test_the_example_fits_how_the_cluster_is_reached():
    plain = Welcome("h:1").lines(STATUS, 3.2)
    assert plain[0] == "ready after 3 s: model m, policy exspec, K = auto"
    assert plain[1] == "clients: h:1 (plain text)"
    assert '  exspec generate --address h:1 "Why is the sky blue?"' in plain
    secure = Welcome("h:1", "my ca.pem", needs_key=True, intro="one\ntwo\n").lines(STATUS, 3.2)
    assert secure[1] == "clients: h:1 (TLS, API key)"
    assert secure[3:5] == ["  one", "  two"]
    assert "--ssl-ca-certs 'my ca.pem' --api-key \"$EXSPEC_API_KEY\"" in secure[5]
    compile("\n".join(line.removeprefix("  ") for line in secure[7:10]), "snippet", "exec")
    assert 'tls=exspec.TlsConfig("my ca.pem")' in "\n".join(secure)


@pytest.fixture
def fake():
    with FakeCoordinator() as coordinator:
        yield coordinator


@pytest.fixture
def start():
    """Start `exspec watch`; it is killed at the end, if it still lives."""
    running = []

    def start(address, *options, stdout=subprocess.PIPE):
        command = [sys.executable, "-m", "exspec.cli.main", "watch", "--address", address]
        process = subprocess.Popen(
            [*command, "--interval", "0.1", *options],
            stdout=stdout, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def read_until(process, text):
    """Lines up to the one that holds `text`; the test's own timeout bounds the wait."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} was not said in {lines} {process.stderr.read()}")


def test_it_says_what_is_missing_then_how_to_ask_then_how_it_goes(fake, start):
    ready = fake.status
    fake.status = replace(ready, is_ready=False, workers=())
    process = start(fake.address, "--public-address", "my.host:1", "--example-intro", "first this")
    assert read_until(process, "waiting") == ["waiting: no target worker has joined\n"]
    fake.status = ready
    said = "".join(read_until(process, "requests"))
    assert "clients: my.host:1 (plain text)\n\n  first this\n  exspec generate" in said
    fake.status = replace(ready, totals=Totals(num_requests=5))
    read_until(process, "requests 5")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_cluster_that_goes_ends_it_with_1(fake, start):
    process = start(fake.address, "--lost-seconds", "0.3")
    read_until(process, "requests")
    fake.stop()
    said = process.stdout.read()
    assert process.wait() == 1
    assert said.startswith("waiting: cannot reach the coordinator")
    assert "error: UnavailableError: not ready for 0.3 s: " in process.stderr.read()


def test_a_cluster_that_comes_back_is_welcomed_in_one_line(fake, start):
    ready = fake.status
    process = start(fake.address)
    read_until(process, "requests")
    fake.status = replace(ready, is_ready=False, workers=())
    read_until(process, "waiting: no target")
    fake.status = ready
    assert read_until(process, "requests")[0].startswith("ready again after")


def test_a_cluster_that_never_comes_ends_it_with_1(start):
    process = start("127.0.0.1:1", "--start-seconds", "0")
    assert process.wait() == 1
    assert "not ready for 0 s: cannot reach the coordinator" in process.stderr.read()


def test_a_terminal_gets_one_line_that_changes(fake, start):
    ours, theirs = pty.openpty()
    process = start(fake.address, stdout=theirs)
    os.close(theirs)
    seen = b""
    while b"acceptance length" not in seen:
        seen += os.read(ours, 4096)
    assert b"\x1b[" in seen
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    os.close(ours)
