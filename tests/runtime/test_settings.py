"""How settings are read: command line over environment over default; mistakes name their flag."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from coordinator.settings import CoordinatorSettings
from draft_worker.settings import DraftSettings
from exspec.runtime.settings import load_settings
from target_worker.settings import TargetSettings


def test_a_flag_beats_the_environment_beats_the_default(monkeypatch):
    assert load_settings(CoordinatorSettings, []).batch_size == 32
    monkeypatch.setenv("EXSPEC_BATCH_SIZE", "4")
    assert load_settings(CoordinatorSettings, []).batch_size == 4
    assert load_settings(CoordinatorSettings, ["--batch-size", "2"]).batch_size == 2


def test_variables_of_other_services_do_not_disturb(monkeypatch):
    monkeypatch.setenv("EXSPEC_NGRAM_MAX", "3")
    assert load_settings(CoordinatorSettings, []).port == 50050


@pytest.mark.parametrize(
    ("settings_class", "argv", "flag"),
    [
        (CoordinatorSettings, ["--batch-size", "0"], "--batch-size"),
        (CoordinatorSettings, ["--port", "x"], "--port"),
        (CoordinatorSettings, ["--policy", "none"], "--policy"),
        (TargetSettings, ["--max-model-len", "1"], "--max-model-len"),
        (TargetSettings, ["--kv-layout", "heap"], "--kv-layout"),
        (DraftSettings, ["--ngram-max", "99"], "--ngram-max"),
    ],
)
def test_a_bad_value_names_its_flag(settings_class, argv, flag, capsys):
    with pytest.raises(SystemExit) as caught:
        load_settings(settings_class, argv)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert f"{flag}:" in message
    assert argv[1] in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("variable", "value", "flag"),
    [
        ("EXSPEC_MAX_MODEL_LEN", "many", "--max-model-len"),
        ("EXSPEC_ALLOW_INSECURE_BIND", "perhaps", "--allow-insecure-bind"),
        ("EXSPEC_DTYPE", "int3", "--dtype"),
    ],
)
def test_a_bad_variable_names_its_flag(monkeypatch, capsys, variable, value, flag):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        load_settings(TargetSettings, [])
    assert caught.value.code == 2
    assert f"{flag}:" in capsys.readouterr().err


def test_an_unknown_flag_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        load_settings(CoordinatorSettings, ["--no-such-flag", "1"])
    assert caught.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_settings_are_frozen():
    settings = load_settings(CoordinatorSettings, [])
    with pytest.raises(ValidationError):
        settings.port = 1


@pytest.mark.parametrize("switch", ["--allow-insecure-bind", "--trust-remote-code"])
def test_switches_need_no_value(switch):
    settings = load_settings(TargetSettings, [switch])
    assert getattr(settings, switch.removeprefix("--").replace("-", "_")) is True


@pytest.mark.parametrize("module", ["coordinator", "target_worker", "draft_worker"])
def test_help_is_answered_without_torch(module):
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{module!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'grpc'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--log-level" in done.stdout
