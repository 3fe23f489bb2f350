"""How a worker of several processes starts itself, decided without starting anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from exspec.core.errors import InvalidRequestError
from exspec.runtime.launch import (
    RankPlace,
    launcher_command,
    place_of_this_process,
    rank_place,
    rank_variables,
)
from exspec.runtime.settings import ModelWorkerSettings


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("EXSPEC_RANK_STORE", "EXSPEC_RANK_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)


def be(monkeypatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_what_a_rank_is_told_is_what_it_reads(monkeypatch):
    be(monkeypatch, **rank_variables(2, 3, "/some/store"))
    assert place_of_this_process(3) == RankPlace(2, 2, 3, "/some/store", os.getpid())


def test_torchrun_may_start_the_ranks_too(monkeypatch):
    be(monkeypatch, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    assert place_of_this_process(2) == RankPlace(1, 1, 2, "", os.getppid())


def test_a_worker_of_one_process_has_no_place(monkeypatch):
    assert place_of_this_process(2) is None
    be(monkeypatch, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")  # some other program's
    assert place_of_this_process(2) is None
    be(monkeypatch, TORCHELASTIC_RUN_ID="none")
    assert place_of_this_process(1) is None
    assert rank_place(ModelWorkerSettings(), "target_worker", []) is None


def test_another_number_of_ranks_than_asked_for_is_refused(monkeypatch, capsys):
    be(monkeypatch, **rank_variables(0, 3, "/some/store"))
    with pytest.raises(InvalidRequestError, match="started as 3 processes"):
        place_of_this_process(2)
    with pytest.raises(SystemExit) as stop:
        rank_place(ModelWorkerSettings(tensor_parallel=2), "target_worker", [])
    assert stop.value.code == 2
    assert "--tensor-parallel 2" in capsys.readouterr().err


def test_the_launcher_runs_the_worker_as_it_was_called():
    settings = ModelWorkerSettings(tensor_parallel=4, log_level="info", log_format="text")
    command = launcher_command(settings, "target_worker", ["--model", "m"])
    launcher, worker = command[: command.index("--")], command[command.index("--") + 1 :]
    assert launcher[0] == worker[0] == sys.executable
    place = launcher.index("exspec.engine.launcher")
    assert launcher[place + 1 :] == [
        "--ranks=4", "--log-level=info", "--log-format=text"
    ]  # fmt: skip
    assert worker[-4:] == ["-m", "target_worker", "--model", "m"]


def test_a_rank_whose_launcher_is_gone_already_ends(monkeypatch):
    be(monkeypatch, **rank_variables(1, 2, "/no/store") | {"EXSPEC_RANK_LAUNCHER": "1073741824"})
    wait = (
        "import threading\n"
        "from exspec.runtime.launch import rank_place\n"
        "from exspec.runtime.settings import ModelWorkerSettings\n"
        "rank_place(ModelWorkerSettings(tensor_parallel=2), 'target_worker', [])\n"
        "threading.Event().wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", wait], timeout=60, check=False)
    assert done.returncode == 1
