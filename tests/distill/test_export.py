"""What is exported loads as any model does, computes the same, and is whole or not there."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel

from exspec.core.errors import CapacityError, InvalidRequestError, UnsupportedModelError
from exspec.core.models import misfit
from exspec.distill import disk
from exspec.distill.export import export_draft, read_draft, round_frozen
from exspec.distill.plan import DistillPlan, EmbeddingType
from exspec.distill.student import build_student
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.sources import find_source
from tests.engine.tiny import save_tiny_model
from tests.engine.tiny_gguf import save_tiny_gguf

TOKENS = torch.tensor([[5, 60, 7, 80, 9, 3, 3, 0]])


class Made:
    """A target on disk, a student that was trained a little, and what is needed to export it."""

    def __init__(self, target: Path, out: Path, **values):
        self.plan = DistillPlan(target=str(target), out=out, **{"num_layers": 1, **values})
        self.target = load_model(ModelSettings(str(target)))
        self.source = find_source(str(target), None, None)
        self.student = build_student(self.target.model, self.plan)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for part in self.student.parameters():
                if part.requires_grad:
                    part += 0.1 * torch.randn(part.shape, generator=generator)

    def export(self, vocabulary=()):
        return export_draft(self.student, self.source, self.plan, vocabulary)


def logits_of(model):
    with torch.inference_mode():
        return model(TOKENS).logits


def rounded(model):
    """Weights as bfloat16 keeps them; what is computed stays float32."""
    with torch.no_grad():
        for part in model.parameters():
            part.copy_(part.to(torch.bfloat16))
    return model


def served_files(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.name != "work"}


@pytest.mark.parametrize("family", ["llama-gqa", "llama-tied", "qwen3", "glm4", "gpt2", "opt"])
def test_a_directory_loads_as_the_student_in_half_precision(tmp_path, family):
    made = Made(save_tiny_model(tmp_path / "target", family=family), tmp_path / "draft")
    files = made.export(range(10, 60))
    assert {path.name for path in files} == served_files(tmp_path / "draft")
    loaded = load_model(ModelSettings(str(tmp_path / "draft")))
    assert type(loaded.model) is type(made.student)
    expected = logits_of(rounded(made.student))
    torch.testing.assert_close(logits_of(loaded.model), expected, rtol=1e-4, atol=1e-4)
    assert loaded.draft_vocabulary == tuple(range(10, 60))
    assert misfit(loaded.facts, made.target.facts) is None
    assert loaded.facts.tokenizer_sha256 == made.target.facts.tokenizer_sha256 != ""
    assert loaded.facts.stop_token_ids == made.target.facts.stop_token_ids
    assert loaded.tokenizer.chat_template == made.target.tokenizer.chat_template


def test_tied_weights_stay_tied(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target", family="llama-tied"), tmp_path / "draft")
    made.export()
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["tie_word_embeddings"]
    assert config["num_hidden_layers"] == 1
    assert config["dtype"] == "bfloat16"
    from safetensors import safe_open

    with safe_open(tmp_path / "draft" / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_a_float16_target_has_a_float16_draft(tmp_path):
    target = save_tiny_model(tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    Made(target, tmp_path / "draft").export()
    assert json.loads((tmp_path / "draft" / "config.json").read_text())["dtype"] == "float16"


def test_a_narrower_student_is_a_directory_that_loads(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "draft", hidden_size=16)
    made.export()
    loaded = load_model(ModelSettings(str(tmp_path / "draft")))
    expected = logits_of(rounded(made.student))
    torch.testing.assert_close(logits_of(loaded.model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_gguf_targets_draft_is_a_gguf_file_that_loads_as_the_student(tmp_path, place):
    made = Made(save_tiny_gguf(tmp_path / "target.gguf"), tmp_path / "a-draft")
    files = made.export(range(6, 90))
    assert [path.name for path in files] == ["a-draft.gguf", "draft_vocab.json"]
    named = files[0] if place == "file" else tmp_path / "a-draft"
    loaded = load_model(ModelSettings(str(named)))
    assert loaded.model.config.num_hidden_layers == 1
    torch.testing.assert_close(
        logits_of(loaded.model), logits_of(made.student), rtol=0.03, atol=0.25
    )
    agreed = logits_of(loaded.model).argmax(-1) == logits_of(made.student).argmax(-1)
    assert agreed.all()
    assert loaded.draft_vocabulary == tuple(range(6, 90))
    assert misfit(loaded.facts, made.target.facts) is None
    assert loaded.facts.tokenizer_sha256 != ""
    assert loaded.facts.max_length == made.target.facts.max_length


def test_a_gguf_draft_keeps_the_targets_metadata_and_embedding_bytes(tmp_path):
    made = Made(save_tiny_gguf(tmp_path / "target.gguf"), tmp_path / "draft")
    path = made.export()[0]
    mine, theirs = gguf.GGUFReader(path), gguf.GGUFReader(tmp_path / "target.gguf")
    differing = {
        name
        for name, field in theirs.fields.items()
        if not name.startswith("GGUF.") and mine.fields[name].contents() != field.contents()
    }
    assert differing == {"llama.block_count"}
    tables = {t.name: t for reader in (theirs, mine) for t in reader.tensors}
    before = next(t for t in theirs.tensors if t.name == "token_embd.weight")
    assert np.array_equal(tables["token_embd.weight"].data, before.data)
    kinds = {t.name: t.tensor_type.name for t in mine.tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0"
    assert kinds["output_norm.weight"] == "F32"
    assert "output.weight" not in kinds
    assert not [name for name in kinds if name.startswith("blk.1.")]


@pytest.mark.parametrize("kind", [EmbeddingType.Q4_1, EmbeddingType.F16])
def test_an_embedding_can_be_stored_in_another_type(tmp_path, kind):
    made = Made(save_tiny_gguf(tmp_path / "t.gguf"), tmp_path / "draft", embedding_type=kind)
    path = made.export()[0]
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert tensors["token_embd.weight"].tensor_type.name.lower() == kind.value
    table = load_model(ModelSettings(str(path))).model.get_input_embeddings().weight
    difference = table - made.student.get_input_embeddings().weight
    assert difference.abs().max() < 0.15


@pytest.mark.parametrize("kind", [None, *EmbeddingType])
def test_what_is_not_trained_can_be_rounded_before_to_what_will_be_stored(tmp_path, kind):
    save = save_tiny_model if kind is None else save_tiny_gguf
    values = {} if kind is None else {"embedding_type": kind}
    made = Made(save(tmp_path / ("t" if kind is None else "t.gguf")), tmp_path / "draft", **values)
    with torch.no_grad():
        made.student.get_input_embeddings().weight.mul_(1.0 if kind is EmbeddingType.TARGET else 3)
    before = {name: part.clone() for name, part in made.student.named_parameters()}
    round_frozen(made.student, made.source, made.plan)
    for name, part in made.student.named_parameters():
        assert not part.requires_grad or part.equal(before[name])
    table = made.student.get_input_embeddings().weight
    files = made.export()
    stored = load_model(ModelSettings(str(files[0] if kind else tmp_path / "draft"))).model
    scale = float(table.abs().max())
    torch.testing.assert_close(
        stored.get_input_embeddings().weight, table, rtol=0, atol=2e-3 * scale
    )
    if kind in (EmbeddingType.Q4_1, None):
        assert not table.equal(before["model.embed_tokens.weight"])


def test_a_second_export_takes_the_place_of_the_first(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "draft")
    made.export()
    first = (tmp_path / "draft" / "model.safetensors").read_bytes()
    with torch.no_grad():
        made.student.model.norm.weight.mul_(2.0)
    made.export()
    assert (tmp_path / "draft" / "model.safetensors").read_bytes() != first


def test_a_tokenizer_with_several_chat_templates_is_kept_whole(tmp_path):
    """transformers puts the others into a folder."""
    target = save_tiny_model(tmp_path / "target")
    tokenizer = AutoTokenizer.from_pretrained(target)
    templates = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(target)
    made = Made(target, tmp_path / "draft")
    for _ in range(2):
        files = made.export()
        assert all(path.is_file() for path in files)
        assert type(read_draft(files, type(made.student))) is type(made.student)
        saved = AutoTokenizer.from_pretrained(tmp_path / "draft")
        assert saved.chat_template == templates
    assert not list((tmp_path / "draft").glob(".export-*"))


def test_no_place_on_this_machine_is_written_into_a_draft(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "draft")
    for path in made.export(range(6, 50)):
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


@pytest.mark.parametrize("save", [save_tiny_model, save_tiny_gguf])
def test_exporting_says_nothing(tmp_path, capfd, caplog, save):
    made = Made(save(tmp_path / "target.gguf"), tmp_path / "draft")
    capfd.readouterr()
    made.export()
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "draft")
    usage = disk.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(CapacityError, match=r"needs [\d,]+ bytes .* 1,000 bytes"):
        made.export()
    assert not (tmp_path / "draft").exists()


NO_SPACE = (
    OSError(errno.ENOSPC, "No space left on device"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
)


@pytest.mark.parametrize("error", NO_SPACE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_a_disk_that_fills_up_on_the_way_leaves_the_draft_before_it(
    tmp_path, monkeypatch, kind, error
):
    save = {"directory": save_tiny_model, "gguf": save_tiny_gguf}[kind]
    made = Made(save(tmp_path / "target.gguf"), tmp_path / "draft")
    made.export()
    before = {path.name: path.read_bytes() for path in (tmp_path / "draft").iterdir()}

    def full(*_args, **_options):
        raise error

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(CapacityError, match=r"draft is full: .* needs [\d,]+ bytes"):
        made.export()
    assert {p.name: p.read_bytes() for p in (tmp_path / "draft").iterdir()} == before


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "file" / "draft")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidRequestError, match="file/draft"):
        made.export()


def test_a_tokenizer_that_cannot_be_read_is_told(tmp_path):
    made = Made(save_tiny_model(tmp_path / "target"), tmp_path / "draft")
    (tmp_path / "target" / "tokenizer.json").write_text("nonsense")
    with pytest.raises(UnsupportedModelError, match="tokenizer"):
        made.export()
    assert served_files(tmp_path / "draft") == set()


def test_a_target_without_tokenizer_has_a_draft_without_one(tmp_path):
    target = save_tiny_model(tmp_path / "target", tokenizer_variant="none")
    Made(target, tmp_path / "draft").export()
    assert load_model(ModelSettings(str(tmp_path / "draft"))).facts.tokenizer_sha256 == ""
