"""`LocalCluster` and `exspec up` over stub processes: start, watch, stop, and what goes wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from exspec import Client, InvalidRequestError, RequestCancelledError, UnavailableError
from exspec.cli.child import ChildDiedError
from exspec.cli.cluster import LocalCluster
from exspec.cli.cluster_plan import ClusterPlan
from exspec.cli.main import app
from exspec.core.ids import Role
from tests.cli.stubs import StubPlan


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_starts_serves_and_stops(tmp_path):
    steps = []
    plan = StubPlan(num_targets=2, num_drafts=1, log_dir=tmp_path)
    with LocalCluster(plan, on_progress=steps.append) as cluster:
        assert set(cluster.pids) == {"coordinator", "target-0", "target-1", "draft-0"}
        assert cluster.can_serve()
        pids = list(cluster.pids.values())
        with Client(cluster.address) as client:
            assert client.generate("Hi").text == "ok"
        assert (tmp_path / "target-1.log").exists()
    assert not any(map(is_alive, pids))
    assert [step.phase for step in steps if step.name == "target-1"] == ["starting", "ready"]
    assert [step.phase for step in steps if step.name == "cluster"] == ["warming up", "ready"]


def test_the_children_are_told_before_they_are_killed(tmp_path):
    with LocalCluster(StubPlan(log_dir=tmp_path)):
        pass
    for name in ("coordinator", "target-0", "draft-0"):
        assert (tmp_path / f"{name}.log").read_text() == "stopped\n"


def test_logs_without_a_folder_are_removed_after_a_clean_stop():
    with LocalCluster(StubPlan()) as cluster:
        folder = cluster.log_dir
        assert folder.is_dir()
    assert not folder.exists()


def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    plan = StubPlan(kinds=(("draft-0", "stubborn"),), log_dir=tmp_path)
    cluster = LocalCluster(plan)
    cluster.start()
    cluster.wait_ready(60)
    pid = cluster.pids["draft-0"]
    start = time.perf_counter()
    cluster.stop(grace_seconds=0.5)
    assert time.perf_counter() - start < 5
    assert not is_alive(pid)
    assert cluster.pids == {}


@pytest.mark.parametrize("name", ["target-0", "draft-0"])
def test_a_worker_that_dies_while_starting_ends_the_start(tmp_path, name):
    cluster = LocalCluster(StubPlan(kinds=((name, "dies"),), log_dir=tmp_path))
    with pytest.raises(ChildDiedError, match=f"{name} ended with exit code 3.*no such model") as e:
        cluster.__enter__()
    assert e.value.log_tail.splitlines() == ["loading", "worker.failed reason=no such model"]
    assert cluster.pids == {}


def test_a_stop_while_starting(tmp_path):
    cluster = LocalCluster(StubPlan(num_targets=1, log_dir=tmp_path))
    cluster.request_stop()
    with pytest.raises(RequestCancelledError):
        cluster.__enter__()
    assert cluster.pids == {}


def test_a_cluster_that_does_not_get_ready_says_what_is_missing(tmp_path):
    cluster = LocalCluster(StubPlan(log_dir=tmp_path))
    cluster.start()
    cluster.add_worker(Role.DRAFT)  # the stub coordinator never hears of it
    with pytest.raises(UnavailableError, match="draft-1 is loading"):
        cluster.wait_ready(timeout_seconds=1)
    cluster.stop()
    assert cluster.pids == {}


def test_deaths_are_reported_once(tmp_path):
    with LocalCluster(StubPlan(num_targets=2, log_dir=tmp_path)) as cluster:
        cluster.kill("target-0")
        deadline = time.perf_counter() + 60
        while cluster.is_running("target-0") and time.perf_counter() < deadline:
            time.sleep(0.02)
        assert [child.name for child in cluster.new_deaths()] == ["target-0"]
        assert cluster.new_deaths() == []
        assert cluster.can_serve()
        cluster.restart_worker("target-0", Role.TARGET)
        assert cluster.is_running("target-0")


def test_a_port_in_use_is_told_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "exspec.cli.main", "up", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be taken" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_coordinator_that_cannot_start_is_told_with_its_log(tmp_path):
    plan = ClusterPlan(coordinator_flags=("--no-such-flag", "1"), log_dir=tmp_path)
    cluster = LocalCluster(plan)
    with pytest.raises(ChildDiedError, match="coordinator ended with exit code 2"):
        cluster.__enter__()
    assert cluster.pids == {}


def test_commands_of_the_services(tmp_path):
    plan = ClusterPlan(
        model="big", draft_model="small", num_targets=3, num_drafts=2, max_num_seqs=4, port=7,
        num_speculative_tokens=0, max_model_len=64, kv_layout="padded", dtype="float64",
    )  # fmt: skip
    coordinator = " ".join(plan.coordinator_command(tmp_path / "c.port"))
    assert "-m coordinator --port 7 --batch-size 4 --num-speculative-tokens 0" in coordinator
    target = " ".join(plan.worker_command(Role.TARGET, "t", "h:1", tmp_path / "t.port"))
    assert "-m target_worker --model big --worker-id t --coordinator h:1 --port 0" in target
    assert "--max-num-seqs 4 --max-model-len 64 --kv-layout padded --dtype float64" in target
    draft = " ".join(plan.worker_command(Role.DRAFT, "d", "h:1", tmp_path / "d.port"))
    assert "-m draft_worker --model small" in draft
    assert "--max-num-seqs 8" in draft  # two targets may share it


def test_the_policy_and_its_sizes_are_handed_on(tmp_path):
    plan = ClusterPlan(
        policy="exspec", batch_size=4, window_size=16, num_speculative_tokens="auto:8",
        generation_config="none",
    )  # fmt: skip
    coordinator = " ".join(plan.coordinator_command(tmp_path / "c.port"))
    assert "--policy exspec --window-size 16 --batch-size 4 " in coordinator
    assert "--num-speculative-tokens auto:8 --generation-config none" in coordinator
    target = " ".join(plan.worker_command(Role.TARGET, "t", "h:1", tmp_path / "t.port"))
    assert "--max-num-seqs 16" in target


def test_how_tokens_are_chosen_is_handed_on_to_whom_it_concerns(tmp_path):
    def commands(plan):
        return (
            " ".join(plan.coordinator_command(tmp_path / "c.port")),
            *(
                " ".join(plan.worker_command(role, "w", "h:1", tmp_path / "w.port"))
                for role in (Role.TARGET, Role.DRAFT)
            ),
        )

    plan = ClusterPlan(
        generation_config="none", draft_sample_method="greedy", draft_vocab="4096", lookup="off",
        draft_weights="full",
    )  # fmt: skip
    coordinator, target, draft = commands(plan)
    assert "--generation-config none" in coordinator
    assert "--draft-sample-method greedy" in draft
    assert "--draft-vocab 4096" in draft
    assert "--draft-weights full" in draft
    assert "--lookup off" in draft
    for command in (target, *commands(ClusterPlan(generation_config=None))):
        assert "--generation-config" not in command
        assert "--draft-sample-method" not in command
        assert "--draft-vocab" not in command
        assert "--draft-weights" not in command
        assert "--lookup" not in command
    assert "--generation-config none" in commands(ClusterPlan())[0], "advice may change a figure"


@pytest.mark.parametrize(
    ("sizes", "num_rows", "num_slots"),
    [
        ({}, 8, 8),
        ({"max_num_seqs": 3}, 3, 3),
        ({"batch_size": 2}, 2, 2),
        ({"window_size": 32}, 8, 32),
        ({"window_size": 4}, 4, 4),
        ({"window_size": 4, "max_num_seqs": 6}, 4, 6),
    ],
)
def test_sizes_that_were_not_given_follow_those_that_were(tmp_path, sizes, num_rows, num_slots):
    plan = ClusterPlan(**sizes)
    coordinator = plan.coordinator_command(tmp_path / "c.port")
    target = plan.worker_command(Role.TARGET, "t", "h:1", tmp_path / "t.port")
    assert coordinator[coordinator.index("--batch-size") + 1] == str(num_rows)
    assert target[target.index("--max-num-seqs") + 1] == str(num_slots)
    assert ("--window-size" in coordinator) is ("window_size" in sizes)
    assert "--policy" not in coordinator


def test_workers_of_one_role_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def command(role, **options):
        plan = ClusterPlan(num_targets=3, num_drafts=1, **options)
        return " ".join(plan.worker_command(role, "w", "h:1", tmp_path / "w.port"))

    assert "--num-threads 2" in command(Role.TARGET)
    assert "--num-threads" not in command(Role.DRAFT)
    assert "--num-threads 5" in command(Role.TARGET, num_threads=5)


def test_plans_that_make_no_sense():
    assert ClusterPlan(draft_model="none").num_drafts == 0
    with pytest.raises(InvalidRequestError, match="at least one target"):
        ClusterPlan(num_targets=0)
    with pytest.raises(InvalidRequestError):
        ClusterPlan(num_drafts=-1)


def test_help_says_what_a_table_of_draft_lengths_looks_like():
    shown = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "400"}).stdout
    assert "[[from rows, to rows, K], …]" in shown


class Up:
    """`exspec up` over stubs, as a process."""

    def __init__(self, tmp_path, **options):
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.log = tmp_path / "up.out"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.stubs", str(tmp_path / "logs"), *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, text, seconds=30):
        deadline = time.perf_counter() + seconds
        while text not in self.log.read_text():
            assert time.perf_counter() < deadline, self.log.read_text()
            assert self.process.poll() is None or text in self.log.read_text(), self.log.read_text()
            time.sleep(0.05)

    def pid_of(self, name):
        return int(re.search(rf"^{name} +starting +pid (\d+)", self.log.read_text(), re.M)[1])

    def end(self, seconds=30):
        return self.process.wait(seconds), self.log.read_text()


@pytest.fixture
def start_up(tmp_path):
    started = []

    def start(**options):
        started.append(Up(tmp_path, **options))
        return started[-1]

    yield start
    for up in started:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_cleanly(start_up, number):
    up = start_up()
    up.wait_for("Ctrl-C stops all processes")
    pids = [up.pid_of(name) for name in ("coordinator", "target-0", "draft-0")]
    assert all(map(is_alive, pids))
    up.process.send_signal(number)
    code, output = up.end()
    assert code == 0, output
    assert output.rstrip().endswith("stopped")
    assert not any(map(is_alive, pids))


def test_a_dead_draft_is_told_and_a_dead_last_target_ends_it_all(start_up):
    up = start_up(targets=2)
    up.wait_for("Ctrl-C stops all processes")
    os.kill(up.pid_of("draft-0"), signal.SIGKILL)
    up.wait_for("the cluster goes on without it")
    os.kill(up.pid_of("target-0"), signal.SIGKILL)
    up.wait_for("target-0 ended with signal SIGKILL")
    assert up.process.poll() is None
    os.kill(up.pid_of("target-1"), signal.SIGKILL)
    code, output = up.end()
    assert code == 1
    assert "last lines of" in output
    assert not is_alive(up.pid_of("coordinator"))


def test_a_dead_coordinator_ends_it_all(start_up):
    up = start_up()
    up.wait_for("Ctrl-C stops all processes")
    os.kill(up.pid_of("coordinator"), signal.SIGKILL)
    code, output = up.end()
    assert code == 1
    assert "coordinator ended with signal SIGKILL" in output


def test_a_start_that_fails_says_why_and_leaves_nothing(start_up):
    up = start_up(kinds="target-0=dies")
    code, output = up.end()
    assert code == 1
    assert "error: ChildDiedError: target-0 ended with exit code 3" in output
    assert "worker.failed reason=no such model" in output
    assert "Traceback" not in output
    assert not is_alive(up.pid_of("coordinator"))


def test_a_second_signal_does_not_wait(start_up):
    up = start_up(kinds="draft-0=stubborn")
    up.wait_for("Ctrl-C stops all processes")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("stopping")
    start = time.perf_counter()
    time.sleep(0.3)
    up.process.send_signal(signal.SIGINT)
    code, _ = up.end()
    assert time.perf_counter() - start < 5
    assert code == 0
    assert not is_alive(up.pid_of("draft-0"))
