"""One model over two processes computes what one process computes, and never outlives a rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from exspec.core.errors import UnsupportedModelError
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.reference import generate_plain
from exspec.engine.spread import check_spread, find_spread
from exspec.runtime.settings import ModelWorkerSettings
from tests.engine.ranks_main import KEPT_TOKENS, MAX_TOKENS, chosen_by_rules, load, prompts
from tests.engine.tiny import save_tiny_model, tiny_config
from tests.engine.tiny_gguf import save_tiny_gguf

FAMILIES = {"llama": "llama-mha", "qwen3": "qwen3", "tied": "llama-tied"}
CASES = [
    ("llama", "float64", "slots"),
    ("llama", "float64", "padded"),
    ("llama", "float32", "slots"),
    ("qwen3", "float64", "slots"),
    ("qwen3", "float32", "padded"),
    ("tied", "float64", "slots"),
]


# One start each for what ends well; what ends badly needs processes of its own.
SCENARIOS = ("courses", "one_rank_not_finite", "gguf", "cut_heads", "refused_before_sending")
SAID_OF_BROKEN_PASSES = {
    "killed": "rank.killed rank=1 signal=SIGKILL",
    "hangs": "ranks.broken rank=0",
    "fails": "no memory left on this rank",
}


def start(scenarios: str, folder: Path) -> subprocess.Popen[str]:
    """The scenarios on two ranks, through our launcher."""
    launcher = ["-m", "exspec.engine.launcher", "--ranks=2", "--"]
    command = [sys.executable, "-m", "tests.engine.ranks_main", scenarios, str(folder), "2"]
    return subprocess.Popen(
        [sys.executable, *launcher, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(started: subprocess.Popen[str]) -> str:
    """What it said on stderr until its end."""
    return started.communicate(timeout=200)[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with one directory per family."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, family in FAMILIES.items():
        save_tiny_model(folder / name, seed=4, family=family)
    save_tiny_gguf(folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def alone(models):
    """The same models in this process."""
    return {
        (name, dtype): load_model(ModelSettings(str(models / name), dtype=dtype))
        for name, dtype, _ in CASES
    }


@pytest.fixture(scope="module")
def truths(models, alone):
    """Plain decoding by this process; the ranks draft from it."""
    found = {
        "/".join(case): [
            generate_plain(alone[case[0], case[1]], prompt, MAX_TOKENS + 8, ())
            for prompt in prompts()
        ]
        for case in CASES
    }
    (models / "truths.json").write_text(json.dumps(found))
    return found


@pytest.fixture(scope="module")
def found_in(models, truths):
    """What rank 0 has found in a scenario."""
    said = end_of(started := start(",".join(SCENARIOS), models))

    def read(scenario: str):
        file = models / f"{scenario}.json"
        assert file.exists(), said
        return json.loads(file.read_text())

    yield read
    assert started.returncode == 0, said


@pytest.fixture(scope="module")
def broken_passes(models):
    """All ways side by side: what is waited for is mostly Python starting."""
    started = {}
    for way in SAID_OF_BROKEN_PASSES:
        (models / way).mkdir()
        started[way] = start("broken_pass", models / way)
    yield started
    for one in started.values():
        one.kill()


def test_two_ranks_choose_what_one_process_chooses(models, alone, truths, found_in):
    found = found_in("courses")
    assert set(found) == set(truths)
    for key, truth in truths.items():
        name, dtype, layout = key.split("/")
        facts = alone[name, dtype].facts
        if dtype == "float64":
            runner = load(models / name, dtype, KvLayoutName(layout), None)
            assert found[key]["chosen"] == chosen_by_rules(runner)
        for num_drafts, outputs in found[key]["outputs"].items():
            for expected, output in zip(truth, outputs, strict=True):
                assert output == list(expected[:MAX_TOKENS]), (key, num_drafts)
        assert found[key]["fingerprint"] == facts.fingerprint
        assert found[key]["parameters"] == facts.num_parameters
        assert found[key]["vocab"] == facts.vocab_size
        assert found[key]["device"] == "2 x cpu"
        own, together = found[key]["kv_bytes"]
        assert together == 2 * own


def test_numbers_that_are_not_finite_on_one_rank_fail_the_row_on_all(found_in):
    assert found_in("one_rank_not_finite") == {"bad": [0], "good": []}


def test_a_bad_batch_is_refused_and_the_ranks_go_on(found_in):
    errors = ["ProtocolError", "InvalidRequestError", "InvalidRequestError", "InvalidRequestError"]
    assert found_in("refused_before_sending") == {"errors": errors, "num_choices": 1}


def test_a_gguf_file_is_divided_into_the_same_model(models, found_in):
    whole = load_model(ModelSettings(str(models / "tiny.gguf")))
    assert found_in("gguf") == {"fingerprint": whole.facts.fingerprint, "kv_heads": 2}
    assert whole.attention.num_kv_heads == 4


def test_a_cut_head_has_the_rows_of_all_ranks(alone, found_in):
    found = found_in("cut_heads")
    assert set(found) == {"llama", "tied"}
    for name, choices in found.items():
        runner = ModelRunner(
            alone[name, "float64"],
            layout=KvLayoutName.SLOTS,
            num_slots=1,
            capacity=64,
            choices_among=KEPT_TOKENS,
        )
        row = RowInput(0, 0, KEPT_TOKENS, len(KEPT_TOKENS))
        assert choices == [list(runner.forward([row]).choices[0])]


@pytest.mark.parametrize("way", SAID_OF_BROKEN_PASSES)
def test_a_rank_that_breaks_a_pass_ends_all(broken_passes, way):
    said = end_of(broken_passes[way])
    assert broken_passes[way].returncode == 1
    assert SAID_OF_BROKEN_PASSES[way] in said
    assert "came back" not in said


def test_a_worker_whose_model_cannot_be_divided_says_so_at_its_end(tmp_path):
    save_tiny_model(tmp_path / "model", family="gpt2")
    flags = ["--tensor-parallel=2", f"--model={tmp_path / 'model'}", "--num-threads=1"]
    done = subprocess.run(
        [sys.executable, "-m", "target_worker", *flags],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be divided among 2 processes" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("family", "num_ranks", "reason"),
    [
        ("llama-gqa", 4, "2 KV heads cannot be divided among 4 processes: --tensor-parallel must"),
        ("llama-gqa", 3, "4 attention heads cannot be divided among 3 processes"),
        ("gpt2", 2, "cannot be divided among 2 processes: transformers has no tensor-parallel"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_with_the_bound(family, num_ranks, reason):
    ranks = SimpleNamespace(device=torch.device("cpu"), num_ranks=num_ranks)
    spread = find_spread("auto", "", ranks)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedModelError, match=reason):
        check_spread(tiny_config(family), spread)


def test_the_settings_say_what_cannot_be_combined():
    settings = ModelWorkerSettings(tensor_parallel=1, device_map="auto")
    assert settings.device_map == "auto"
    with pytest.raises(ValueError, match="cannot be combined with --tensor-parallel"):
        ModelWorkerSettings(tensor_parallel=2, device_map="auto")
