"""One model over two processes computes what one process computes, and never outlives a rank."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.reference import generate_plain
from exspec.runtime.settings import ModelWorkerSettings
from tests.engine.ranks_main import MAX_TOKENS, prompts
from tests.engine.tiny import save_tiny_model

FAMILIES = {"llama": "llama-mha", "qwen3": "qwen3", "tied": "llama-tied"}
CASES = [
    ("llama", "float64", "slots"),
    ("llama", "float64", "padded"),
    ("llama", "float32", "slots"),
    ("qwen3", "float64", "slots"),
    ("qwen3", "float32", "padded"),
    ("tied", "float64", "slots"),
]


def launch(scenario: str, folder: Path, num_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """The scenario on so many ranks, through our launcher."""
    launcher = ["-m", "exspec.engine.launcher", f"--ranks={num_ranks}", "--grace-seconds=0", "--"]
    command = [
        sys.executable,
        "-m",
        "tests.engine.ranks_main",
        scenario,
        str(folder),
        str(num_ranks),
    ]
    return subprocess.run(
        [sys.executable, *launcher, *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def found_in(folder: Path, done: subprocess.CompletedProcess[str]) -> dict:
    """What rank 0 has written."""
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with one directory per family."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, family in FAMILIES.items():
        save_tiny_model(folder / name, seed=4, family=family)
    return folder


def test_two_ranks_choose_what_one_process_chooses(models):
    alone = {
        (name, dtype): load_model(ModelSettings(str(models / name), dtype=dtype))
        for name, dtype, _ in CASES
    }
    truths = {
        "/".join(case): [
            generate_plain(alone[case[0], case[1]], prompt, MAX_TOKENS + 8, ())
            for prompt in prompts()
        ]
        for case in CASES
    }
    (models / "truths.json").write_text(json.dumps(truths))
    found = found_in(models, launch("courses", models))
    assert set(found) == set(truths)
    for key, truth in truths.items():
        facts = alone[*key.split("/")[:2]].facts
        for num_drafts, outputs in found[key]["outputs"].items():
            for expected, output in zip(truth, outputs, strict=True):
                assert output == list(expected[:MAX_TOKENS]), (key, num_drafts)
        assert found[key]["fingerprint"] == facts.fingerprint
        assert found[key]["parameters"] == facts.num_parameters
        assert found[key]["vocab"] == facts.vocab_size
        assert found[key]["device"] == "2 x cpu"
        own, together = found[key]["kv_bytes"]
        assert together == 2 * own


def test_numbers_that_are_not_finite_on_one_rank_fail_the_row_on_all(models):
    found = found_in(models, launch("one_rank_not_finite", models))
    assert found == {"bad": [0], "good": []}


def test_a_bad_batch_is_refused_and_the_ranks_go_on(models):
    found = found_in(models, launch("refused_before_sending", models))
    errors = ["ProtocolError", "InvalidRequestError", "InvalidRequestError", "InvalidRequestError"]
    assert found == {"errors": errors, "num_choices": 1}


@pytest.mark.pair
def test_a_gguf_file_is_divided_into_the_same_model(tmp_path):
    file = resources.files("exspec") / "models" / "smollm2_draft" / "smollm2-draft.gguf"
    (tmp_path / "gguf").write_text(str(file))
    found = found_in(tmp_path, launch("gguf", tmp_path, num_ranks=3))
    alone = load_model(ModelSettings(str(file)))
    assert found == {"fingerprint": alone.facts.fingerprint, "kv_heads": 1}
    assert alone.attention.num_kv_heads == 3


@pytest.mark.parametrize("way", ["killed", "hangs", "fails"])
def test_a_rank_that_breaks_a_pass_ends_all(models, way):
    (models / "way").write_text(way)
    done = launch("broken_pass", models)
    assert done.returncode == 1
    says = {
        "killed": "rank.killed rank=1 signal=SIGKILL",
        "hangs": "ranks.broken rank=0",
        "fails": "no memory left on this rank",
    }
    assert says[way] in done.stderr
    assert "came back" not in done.stderr


@pytest.mark.parametrize(
    ("family", "num_ranks", "reason"),
    [
        ("llama-gqa", 4, "KV heads cannot be divided among 4 processes: --tensor-parallel must"),
        ("gpt2", 2, "cannot be divided among 2 processes: transformers has no tensor-parallel"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_with_the_bound(
    tmp_path, family, num_ranks, reason
):
    save_tiny_model(tmp_path / "model", family=family)
    flags = [f"--tensor-parallel={num_ranks}", f"--model={tmp_path / 'model'}", "--num-threads=1"]
    done = subprocess.run(
        [sys.executable, "-m", "target_worker", *flags],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert reason in done.stderr.splitlines()[-1]


def test_the_settings_say_what_cannot_be_combined():
    settings = ModelWorkerSettings(tensor_parallel=1, device_map="auto")
    assert settings.device_map == "auto"
    with pytest.raises(ValueError, match="cannot be combined with --tensor-parallel"):
        ModelWorkerSettings(tensor_parallel=2, device_map="auto")
