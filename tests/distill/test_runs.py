"""Whole runs on tiny targets: what comes out is a draft, however often they were interrupted."""

from __future__ import annotations

import errno
import json

import pytest

from exspec.core.errors import CapacityError, InvalidRequestError, UnsupportedModelError
from exspec.core.models import misfit
from exspec.distill import disk
from exspec.distill.run import carry_out
from exspec.engine.loading import ModelSettings, load_model
from exspec.runtime import files
from tests.distill.worlds import Onlooker, tiny_plan, write_prompts
from tests.engine.tiny import save_tiny_model
from tests.engine.tiny_gguf import save_tiny_gguf


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.txt")


@pytest.fixture(scope="module")
def make_target(tmp_path_factory):
    def make(kind):
        path = tmp_path_factory.mktemp(kind) / "target.gguf"
        return save_tiny_gguf(path) if kind == "gguf" else save_tiny_model(path, family=kind)

    return make


@pytest.fixture(scope="module")
def llama(make_target):
    return make_target("llama-gqa")


STOPS = (
    lambda one: one.num_asked > 6,  # in the middle of a unit
    lambda one: one.num_done > 0,  # after a unit
    lambda one: one.name == "training" and one.num_stage_done > 0,  # after a step
    lambda one: False,
)
"""When each run is asked to end."""


@pytest.mark.parametrize("kind", ["llama-gqa", "gpt2"])
def test_interrupted_and_gone_on_gives_the_same_draft(kind, make_target, prompts, tmp_path):
    """In the text, in the training, and again; to the bytes as a run that nothing stopped."""
    target = make_target(kind)
    whole = tiny_plan(target, tmp_path / "whole" / "draft", prompts=prompts)
    assert carry_out(whole, Onlooker()).report.is_complete
    plan = tiny_plan(target, tmp_path / "draft", prompts=prompts)
    runs = [(carry_out(plan, one), one) for one in map(Onlooker, STOPS)]
    assert [outcome.report.is_complete for outcome, _ in runs] == [False] * 3 + [True]
    began = [(one.stages[0][0], one.stages[0][2] > 0) for _, one in runs]
    assert began == [("text", False)] * 2 + [("text", True), ("training", True)]
    for name in ("model.safetensors", "draft_vocab.json"):
        assert (plan.out / name).read_bytes() == (whole.out / name).read_bytes()
    outcome = runs[-1][0]
    assert outcome.num_runs == len(STOPS)
    check_draft(outcome, target, plan.out)


def test_a_gguf_target_gets_a_gguf_draft(make_target, prompts, tmp_path):
    target = make_target("gguf")
    plan = tiny_plan(target, tmp_path / "draft", prompts=prompts)
    outcome = carry_out(plan, Onlooker())
    assert [path.name for path in outcome.report.files] == ["draft.gguf", "draft_vocab.json"]
    check_draft(outcome, target, plan.out)


def check_draft(outcome, target, named):
    draft, full = (load_model(ModelSettings(str(path))) for path in (named, target))
    assert draft.model.config.num_hidden_layers == 1
    assert misfit(draft.facts, full.facts) is None
    assert draft.facts.tokenizer_sha256
    assert len(draft.draft_vocabulary) == 200
    assert set(full.facts.stop_token_ids) <= set(draft.draft_vocabulary)
    for found in (outcome.report.held_out, outcome.report.as_stored):
        assert found is not None
        assert 1 <= found.acceptance_length <= 6


def test_prompts_are_the_targets_own_unless_there_is_a_file(llama, tmp_path):
    plan = tiny_plan(llama, tmp_path / "draft", num_tokens=50)
    onlooker = Onlooker()
    outcome = carry_out(plan, onlooker)
    assert [name for name, _, _ in onlooker.stages] == ["text", "training", "export"]
    card = (plan.out / "README.md").read_text()
    assert "sampled from the target's own chat template" in " ".join(card.split())
    assert f"| {outcome.report.held_out.acceptance_length:.2f} |" in card


def test_a_disk_that_fills_up_loses_no_unit(llama, prompts, tmp_path, monkeypatch):
    plan = tiny_plan(llama, tmp_path / "draft", prompts=prompts)
    fsync, num_synced = files.os.fsync, 0

    def full(handle):
        nonlocal num_synced
        num_synced += 1
        if num_synced == 3:  # the plan and one unit are written
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(CapacityError, match=r"unit-00001.* needs [\d,]+ bytes"):
            carry_out(plan, Onlooker())
    names = sorted(path.name for path in plan.work_dir.iterdir())
    assert names == ["lock", "plan.json", "runs.json", "unit-00000.safetensors"]
    onlooker = Onlooker()
    assert carry_out(plan, onlooker).report.is_complete
    assert onlooker.stages[0][2] > 0  # the unit counts


def test_minutes_pause_a_run(llama, prompts, tmp_path):
    ticks = iter(range(10_000))
    plan = tiny_plan(llama, tmp_path / "draft", prompts=prompts, minutes=0.5)
    outcome = carry_out(plan, Onlooker(), lambda: 10.0 * next(ticks))
    assert not outcome.report.is_complete
    assert outcome.seconds > 30


def test_a_narrower_draft_is_made_too(llama, prompts, tmp_path):
    plan = tiny_plan(llama, tmp_path / "draft", prompts=prompts, hidden_size=16, num_layers=2)
    assert carry_out(plan, Onlooker()).report.is_complete
    config = load_model(ModelSettings(str(plan.out))).model.config
    assert (config.hidden_size, config.num_hidden_layers) == (16, 2)
    assert "2 layers drawn at random" in (plan.out / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_layers": 3}, "3 layers cannot be made"),
        ({"hidden_size": 20}, "multiple of 8"),
        ({"prompts": "missing"}, r"missing\.txt cannot be read"),
        ({"start_from": "deep"}, "deep is a LlamaForCausalLM of 2 layers; .* of 1"),
        ({"start_from": "words", "num_layers": 2}, "words has another tokenizer"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_is_written(
    llama, tmp_path, changes, words
):
    if "prompts" in changes:
        changes = {"prompts": tmp_path / "missing.txt"}
    if "start_from" in changes:
        variant = "words" if changes["start_from"] == "words" else "bytes"
        start = save_tiny_model(tmp_path / changes["start_from"], tokenizer_variant=variant)
        changes = {**changes, "start_from": str(start)}
    with pytest.raises(InvalidRequestError, match=words):
        carry_out(tiny_plan(llama, tmp_path / "draft", **changes), Onlooker())
    assert not (tmp_path / "draft").exists()


def test_a_draft_vocabulary_without_room_is_told_before_any_text_is_made(llama, prompts, tmp_path):
    plan = tiny_plan(llama, tmp_path / "draft", prompts=prompts, draft_vocab=2)
    with pytest.raises(InvalidRequestError, match="no room"):
        carry_out(plan, Onlooker())
    assert not list(plan.work_dir.glob("unit-*"))


def test_one_prompt_makes_a_draft_that_is_not_measured(llama, tmp_path):
    path = write_prompts(tmp_path / "prompts.txt", 1)
    plan = tiny_plan(llama, tmp_path / "draft", prompts=path)
    report = carry_out(plan, Onlooker()).report
    assert report.is_complete
    assert (report.held_out, report.as_stored) == (None, None)
    assert "Not measured" in (plan.out / "README.md").read_text()


def test_prompts_that_do_not_fit_are_left_out(llama, tmp_path):
    """However many of them stand side by side in the file."""
    path = write_prompts(tmp_path / "prompts.txt", 12)
    path.write_text(("x" * 300 + "\n") * 40 + path.read_text())
    plan = tiny_plan(llama, tmp_path / "draft", prompts=path)
    assert carry_out(plan, Onlooker()).report.is_complete


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system prompt') }}", "user's turn .*: no system prompt"),
        ("{% for", "chat template cannot show"),
        ("{{ messages[0]['content'] | upper }}", "leaves out the user's text, or changes it"),
    ],
)
@pytest.mark.parametrize("from_file", [False, True], ids=["sampled", "file"])
def test_a_template_that_cannot_show_a_prompt_is_told_at_the_start(
    template, words, from_file, prompts, tmp_path
):
    target = save_tiny_model(tmp_path / "target")
    (target / "chat_template.jinja").write_text(template)
    changes = {"prompts": prompts} if from_file else {}
    with pytest.raises(UnsupportedModelError, match=words):
        carry_out(tiny_plan(target, tmp_path / "draft", **changes), Onlooker())
    assert not (tmp_path / "draft").exists()


def test_a_disk_that_is_too_small_is_told_at_the_start(llama, tmp_path, monkeypatch):
    usage = disk.shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(CapacityError, match=r"needs 32,[\d,]+ bytes .* at .*draft"):
        carry_out(tiny_plan(llama, tmp_path / "draft", num_tokens=10**9), Onlooker())
    assert not (tmp_path / "draft").exists()


def test_without_a_chat_template_prompts_are_asked_for_and_used_as_plain_text(tmp_path):
    target = save_tiny_model(tmp_path / "target")
    (target / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedModelError, match=r"no chat template.*--prompts"):
        carry_out(tiny_plan(target, tmp_path / "draft"), Onlooker())
    assert not (tmp_path / "draft").exists()
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"number {n} is"}) + "\n" for n in range(30)))
    onlooker = Onlooker()
    plan = tiny_plan(target, tmp_path / "draft", prompts=path)
    assert carry_out(plan, onlooker).report.is_complete
    assert any("30 prompts" in note and "as plain text" in note for note in onlooker.notes)
    assert "prompts from a file" in " ".join((plan.out / "README.md").read_text().split())
