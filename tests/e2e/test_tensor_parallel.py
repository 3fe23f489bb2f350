"""A target of two processes in a real cluster: same tokens, one life, one end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exspec import Client
from exspec.core.ids import Role
from exspec.wire.health import probe
from tests.e2e.conftest import plan

PROMPTS = ("a", "The quick brown fox", "x" * 90)
SECONDS = 120.0
TARGET, DRAFT, COORDINATOR = "target-0", "draft-0", "coordinator"

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds ranks in /proc")


def ranks_of(launcher: int) -> list[int]:
    """Process ids of the ranks, rank 0 first."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    environments = {
        int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children
    }
    found = {
        next(int(v[5:]) for v in variables if v.startswith(b"RANK=")): pid
        for pid, variables in environments.items()
        if any(v.startswith(b"RANK=") for v in variables)
    }
    return [found[rank] for rank in sorted(found)]


def wait_until(holds) -> None:
    """Poll until something holds."""
    give_up = threading.Event()
    timer = threading.Timer(SECONDS, give_up.set)
    timer.start()
    try:
        while not holds():
            assert not give_up.wait(0.05), "it did not come to hold"
    finally:
        timer.cancel()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has asked about yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def cluster(make_processes, target_dir, noise_dir):
    """A target that is two processes, and a draft that is two as well.

    A test that breaks the target replaces it; the last one stops all.
    """
    flags = ("--tensor-parallel", "2")
    options = {"max_num_seqs": 2, "target_flags": flags, "draft_flags": flags}
    return make_processes(plan(target_dir, noise_dir, **options))


def replace_target(cluster) -> None:
    """Start it again, once it is gone."""
    cluster.new_deaths()
    cluster.restart_worker(TARGET, Role.TARGET)
    cluster.wait_ready(SECONDS)


def test_it_serves_plain_decoding(cluster, plain):
    with Client(cluster.address) as client:
        results = client.generate_batch(PROMPTS, max_tokens=24, ignore_eos=True)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.token_ids == plain(client.tokenize(prompt).token_ids, 24, ())
        workers = {worker.worker.role: worker.worker for worker in client.cluster_status().workers}
    for role in (Role.TARGET, Role.DRAFT):
        model = workers[role].model
        assert model is not None
        assert model.device == "2 x cpu"


def test_health_is_answered_while_a_pass_waits_for_a_rank(cluster, plain):
    with Client(cluster.address) as client:
        prompt = client.tokenize("wait for me").token_ids
        with client.stream(prompt, max_tokens=60, ignore_eos=True) as stream:
            next(stream.text_deltas())
            behind = ranks_of(cluster.pids[TARGET])[1]
            os.kill(behind, signal.SIGSTOP)
            try:
                assert probe(
                    cluster.addresses[TARGET], "exspec.v1.TargetService", timeout_seconds=5
                )
            finally:
                os.kill(behind, signal.SIGCONT)
            assert stream.final().token_ids == plain(prompt, 60, ())


def test_a_second_signal_ends_all_its_processes_at_once(cluster):
    log = cluster.log_dir / f"{TARGET}.log"
    child = cluster._children[TARGET]
    with Client(cluster.address) as client:
        ranks = ranks_of(child.pid)
        with client.stream("nowhere to go", max_tokens=100, ignore_eos=True) as stream:
            next(stream.text_deltas())
            os.kill(ranks[1], signal.SIGSTOP)  # so that it cannot be done with its pass
            try:
                child.send(signal.SIGTERM)
                wait_until(lambda: "worker.draining" in log.read_text())
                child.send(signal.SIGTERM)
                wait_until(lambda: not is_alive(ranks[0]))
            finally:
                os.kill(ranks[1], signal.SIGCONT)
            wait_until(lambda: not child.is_running)
    assert child.exit_code == 0
    assert not any(is_alive(pid) for pid in ranks)
    replace_target(cluster)


def test_it_is_lost_with_any_of_its_processes_and_replaced(cluster, plain):
    """First with a rank behind rank 0, then with the launcher, each in the middle of a request."""
    with Client(cluster.address) as client:
        prompt = client.tokenize("under way").token_ids
        for victim in ("rank", "launcher"):
            ranks = ranks_of(cluster.pids[TARGET])
            with client.stream(prompt, max_tokens=100, ignore_eos=True) as stream:
                next(stream.text_deltas())
                os.kill(ranks[1] if victim == "rank" else cluster.pids[TARGET], signal.SIGKILL)
                wait_until(lambda: not cluster.is_running(TARGET))
                wait_until(lambda pids=ranks: not any(is_alive(pid) for pid in pids))
            replace_target(cluster)
            assert client.generate(prompt, max_tokens=30, ignore_eos=True).token_ids == plain(
                prompt, 30, ()
            )


def test_it_ends_in_good_order(cluster):
    ranks = [pid for name in (TARGET, DRAFT) for pid in ranks_of(cluster.pids[name])]
    assert len(ranks) == 4
    children = dict(cluster._children)
    cluster.stop(grace_seconds=SECONDS)
    assert [children[name].exit_code for name in (TARGET, DRAFT, COORDINATOR)] == [0, 0, 0]
    assert not any(is_alive(pid) for pid in ranks)


def test_stopped_while_it_loads_it_ends_with_all_its_processes(target_dir):
    flags = ["--tensor-parallel=2", f"--model={target_dir}", "--num-threads=1"]
    started = subprocess.Popen([sys.executable, "-m", "target_worker", *flags])
    try:
        wait_until(lambda: len(ranks_of(started.pid)) == 2)
        ranks = ranks_of(started.pid)
        started.send_signal(signal.SIGTERM)
        started.wait(SECONDS)
        wait_until(lambda: not any(is_alive(pid) for pid in ranks))
    finally:
        started.kill()


def test_help_and_wrong_settings_are_answered_by_the_first_process():
    for flags, code, words in (
        (["--help"], 0, "--tensor-parallel"),
        (["--tensor-parallel=2", "--device-map=auto"], 2, "--device-map: cannot be combined"),
        (["--tensor-parallel=0"], 2, "--tensor-parallel"),
    ):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "target_worker", *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code
        assert words in done.stdout + done.stderr
        assert "| torch\n" not in done.stderr
