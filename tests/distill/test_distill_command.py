"""`exspec distill` as a command: its options, what it prints, how it ends."""

from __future__ import annotations

import json
import signal

import pytest
from typer.testing import CliRunner

from exspec.cli.distill_watch import Ending, ShownProgress, ends_on_signals
from exspec.cli.main import app
from tests.distill.worlds import write_prompts
from tests.engine.tiny import save_tiny_model

SMALL = (
    "--layers", "1", "--draft-vocab", "200", "--tokens", "200", "--epochs", "2", "--labels", "4",
    "--max-prompt-tokens", "240", "--max-answer-tokens", "12", "--device", "cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture
def run(target, tmp_path):
    prompts = write_prompts(tmp_path / "prompts.txt")

    def run(*options, small=SMALL):
        named = ("--target", str(target), "--out", str(tmp_path / "draft"))
        return CliRunner().invoke(
            app, ["distill", *named, "--prompts", str(prompts), *small, *options]
        )

    return run


def test_a_draft_is_made_and_told_of(run, tmp_path):
    done = run()
    assert done.exit_code == 0, done.output
    assert "acceptance length" in done.stdout
    assert "LlamaForCausalLM" in done.stdout
    assert "exspec up --model" in done.stdout
    for line in ("20 prompts", "text: 0 of 200 answer tokens", "training: ", "export: 1 of 1"):
        assert line in done.stderr
    card = (tmp_path / "draft" / "README.md").read_text()
    assert "--prompts" in card
    again = run("--json")
    assert again.exit_code == 0
    document = json.loads(again.stdout)
    assert document["is_complete"]
    assert document["num_runs"] == 2
    assert document["plan"]["num_layers"] == 1
    for name, field in (("as trained", "held_out"), ("as stored", "as_stored")):
        by_position = document[field]["by_position"]
        assert document["acceptance_length"][name] == pytest.approx(1 + sum(by_position))
        assert name in done.stdout
    assert str(tmp_path / "draft" / "config.json") in document["files"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_ends_it_cleanly_and_the_same_command_goes_on(run, monkeypatch, number, code):
    stage = ShownProgress.stage

    def interrupted(self, *values):
        stage(self, *values)
        signal.raise_signal(number)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(ShownProgress, "stage", interrupted)
        ended = run()
    assert ended.exit_code == code, ended.output
    assert "ending at the next step" in ended.stderr
    assert "run the same command to go on" in ended.stdout
    assert signal.getsignal(number) is before
    again = json.loads(run("--json", "--minutes", "0.00001").stdout)
    assert again["num_runs"] == 2


def test_a_second_signal_ends_it_at_once():
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with ends_on_signals() as ending:
            signal.raise_signal(number)
            assert ending.signal_number == number
            with pytest.raises(error):
                signal.raise_signal(number)


def test_minutes_that_are_over_are_no_failure(run):
    paused = run("--minutes", "0.00001")
    assert paused.exit_code == 0, paused.output
    assert "run the same command to go on" in paused.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layers", "9"), "9 layers cannot be made from a target of 2"),
        (("--from-layers", "1,0", "--layers", "2"), "rising order"),
        (("--from-layers", "0,1"), "names 2 layers (0,1) for a draft of 1"),
        (("--from-layers", "first"), "no list of numbers"),
        (("--hidden", "20"), "multiple of 8"),
        (("--epochs", "0"), "num_epochs 0.0 is not above 0"),
        (("--minutes", "-1"), "minutes -1.0 is not above 0"),
        (("--prompts", "/no/such/file"), "/no/such/file cannot be read"),
        (("--draft-vocab", "2"), "no room for the"),
        (("--start-from", "/no/such/draft"), "/no/such/draft"),
        (("--device", "toaster"), "toaster"),
    ],
)
def test_what_makes_no_sense_is_refused(run, options, words):
    refused = run(*options)
    assert refused.exit_code == 2, refused.output
    assert words in refused.stderr
    assert "Traceback" not in refused.output


def test_layers_to_start_from_say_how_many_there_are(run):
    done = run("--from-layers", "0,1", "--minutes", "0.00001", "--json", small=SMALL[2:])
    assert json.loads(done.stdout)["layers"] == [0, 1]


def test_a_missing_target_is_refused(run):
    refused = run("--target", "/no/such/model")
    assert refused.exit_code == 2
    assert "/no/such/model" in refused.stderr


def test_a_disk_that_is_full_is_a_failure(run, monkeypatch, tmp_path):
    from exspec.distill import disk

    usage = disk.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _path: usage)
    failed = run()
    assert failed.exit_code == 1
    assert "CapacityError: making the draft model needs" in failed.stderr
    assert str(tmp_path / "draft") in failed.stderr


def test_without_torch_it_says_what_to_install(run, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    refused = run()
    assert refused.exit_code == 1
    assert "pip install 'exspec[worker]'" in refused.stderr


def test_progress_is_told_in_few_lines_where_there_is_no_terminal(capsys):
    with ShownProgress(Ending()) as progress:
        progress.stage("text", 1000, 0)
        for _ in range(1000):
            progress.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "text: 0 of 1,000 answer tokens"
    assert lines[-1] == "text: 1,000 of 1,000 answer tokens"
    assert len(lines) == 21
