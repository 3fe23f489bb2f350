"""Workers that die, stop, come late or do not fit: the output does not change."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

import exspec
from exspec import Client
from exspec.cli.cluster import LocalCluster
from exspec.core.cluster import ClusterStatus, WorkerState
from exspec.core.ids import Role
from tests.e2e.conftest import plan
from tests.e2e.forked import run_worker

PROMPT = "a request that is under way"
LENGTH = 120


@pytest.fixture(scope="module")
def cluster(make_cluster, target_dir, noise_dir):
    """Two of each. A test that breaks it mends it."""
    cluster = make_cluster(plan(target_dir, noise_dir, num_targets=2, num_drafts=2))
    yield cluster
    cluster.stop()


def expected(client, plain):
    return plain(client.tokenize(PROMPT).token_ids, LENGTH, ())


def wait_until(client: Client, holds: Callable[[ClusterStatus], bool], seconds: float = 60) -> None:
    """Poll the status until something holds."""
    give_up = threading.Event()
    timer = threading.Timer(seconds, give_up.set)
    timer.start()
    try:
        while not give_up.is_set():
            if holds(client.cluster_status()):
                return
            give_up.wait(0.05)
    finally:
        timer.cancel()
    raise AssertionError(f"it did not come to hold: {client.cluster_status()}")


def wait_for(client: Client, worker_id: str, state: WorkerState) -> None:
    """Poll the status until a worker is in a state."""
    wait_until(
        client,
        lambda status: any(
            worker.worker.worker_id == worker_id and worker.state is state
            for worker in status.workers
        ),
    )


def home_of(client: Client, role: Role) -> str:
    """The worker that holds the one running sequence."""
    (home,) = [
        worker.worker.worker_id
        for worker in client.cluster_status().workers
        if worker.num_sequences and worker.worker.role is role
    ]
    return home


@pytest.mark.parametrize("role", [Role.DRAFT, Role.TARGET])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_home_of_a_running_sequence_goes_away(cluster, plain, role, number):
    with Client(cluster.address) as client:
        with client.stream(PROMPT, max_tokens=LENGTH, ignore_eos=True) as stream:
            deltas = stream.text_deltas()
            for _ in range(3):
                next(deltas)
            home = home_of(client, role)
            cluster.kill(home, number)
            for _ in deltas:
                pass
            assert stream.final().token_ids == expected(client, plain)
        cluster.restart_worker(home, role)
        wait_for(client, home, WorkerState.READY)
        again = client.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
        assert again.token_ids == expected(client, plain)


def test_all_drafts_die_and_one_comes_back(cluster, plain):
    with Client(cluster.address) as client:
        cluster.kill("draft-0")
        cluster.kill("draft-1")
        wait_for(client, "draft-0", WorkerState.JOINING)
        wait_for(client, "draft-1", WorkerState.JOINING)
        alone = client.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
        assert alone.token_ids == expected(client, plain)
        assert alone.speculation.num_draft_tokens == 0
        cluster.restart_worker("draft-0", Role.DRAFT)
        wait_for(client, "draft-0", WorkerState.READY)
        helped = client.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
        assert helped.token_ids == expected(client, plain)
        assert helped.speculation.num_draft_tokens > 0
        cluster.restart_worker("draft-1", Role.DRAFT)
        wait_for(client, "draft-1", WorkerState.READY)


def test_a_draft_that_is_stopped_in_its_tracks_is_left_out(
    make_cluster, target_dir, noise_dir, plain
):
    cluster = make_cluster(
        plan(target_dir, noise_dir, coordinator_flags=("--draft-timeout-seconds", "1"))
    )
    with Client(cluster.address) as client:
        with client.stream(PROMPT, max_tokens=LENGTH, ignore_eos=True) as stream:
            deltas = stream.text_deltas()
            next(deltas)
            cluster.kill("draft-0", signal.SIGSTOP)
            for _ in deltas:
                pass
            assert stream.final().token_ids == expected(client, plain)
        wait_until(client, lambda status: status.totals.num_draft_failures >= 1)
        cluster.kill("draft-0", signal.SIGCONT)
        wait_for(client, "draft-0", WorkerState.READY)
        again = client.generate(PROMPT, max_tokens=LENGTH, ignore_eos=True)
        assert again.token_ids == expected(client, plain)
        assert again.speculation.num_draft_tokens > 0
    cluster.stop()


def test_without_a_target_requests_end_with_what_was_delivered(make_cluster, target_dir):
    cluster = make_cluster(
        plan(target_dir, "none", coordinator_flags=("--unavailable-seconds", "1"))
    )
    with Client(cluster.address, max_retries=0) as client:
        with client.stream(PROMPT, max_tokens=LENGTH, ignore_eos=True) as stream:
            deltas = stream.text_deltas()
            next(deltas)
            cluster.kill("target-0")
            with pytest.raises(exspec.UnavailableError, match=r"\d+ tokens had been generated"):
                for _ in deltas:
                    pass
        with pytest.raises(exspec.UnavailableError):
            client.generate(PROMPT, max_tokens=4)
        assert client.cluster_status().is_ready is False
    cluster.stop()


def test_a_draft_with_another_tokenizer_is_refused_by_name(
    cluster: LocalCluster, zygote, stranger_dir, target_dir, tmp_path
):
    flags = ["--model", str(stranger_dir), "--coordinator", cluster.address]
    flags += ["--worker-id", "stranger"]
    exit_code, said = run_worker(zygote, "draft_worker", flags, tmp_path / "log")
    assert exit_code == 1
    assert stranger_dir.name in said
    assert target_dir.name in said
    with Client(cluster.address) as client:
        wait_for(client, "stranger", WorkerState.REFUSED)
        (refused,) = [
            worker
            for worker in client.cluster_status().workers
            if worker.state is WorkerState.REFUSED
        ]
        assert "tokenizer" in refused.reason


def test_processes_stop_cleanly_and_free_their_ports(
    make_processes, make_cluster, target_dir, noise_dir
):
    cluster = make_processes(plan(target_dir, noise_dir))
    port = int(cluster.address.rpartition(":")[2])
    cluster.stop()
    assert cluster.pids == {}
    again = make_cluster(plan(target_dir, "none", port=port))
    with pytest.raises(exspec.UnavailableError, match=str(port)):
        LocalCluster(plan(target_dir, "none", port=port)).start()
    again.stop()


def test_a_missing_model_is_named(zygote, tmp_path):
    flags = ["--model", str(tmp_path / "nowhere")]
    exit_code, said = run_worker(zygote, "target_worker", flags, tmp_path / "log")
    assert exit_code == 1
    assert "nowhere" in said
