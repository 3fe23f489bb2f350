"""Files that say nonsense: our errors with a clear message, or a warning, never a foreign one."""

from __future__ import annotations

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from exspec.core.errors import ModelNotFoundError, UnsupportedModelError
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.support import max_length_of
from tests.engine.tiny import save_tiny_model


@pytest.fixture
def directory(tmp_path):
    return save_tiny_model(tmp_path / "model")


def load(directory):
    return load_model(ModelSettings(str(directory)))


def rewrite_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def add_weight(directory, name):
    path = directory / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(3)}, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("configured", "expected", "named"),
    [
        ([0, 999, -1, 1], (0, 1), "999, -1"),
        ("abc", (), "abc"),
        ([[1]], (), "[1]"),
        (True, (), "True"),
        ([], (), None),
    ],
    ids=str,
)
def test_only_token_ids_are_stop_tokens(directory, caplog, configured, expected, named):
    rewrite_json(directory / "generation_config.json", eos_token_id=configured)
    assert load(directory).facts.stop_token_ids == expected
    assert bool(caplog.records) == (named is not None)
    assert (named or "") in caplog.text


def test_unused_weights_are_named(directory, caplog):
    add_weight(directory, "model.extra.weight")
    load(directory)
    assert "weights_unused" in caplog.text
    assert "model.extra.weight" in caplog.text


def test_more_layers_than_configured_are_refused(directory):
    add_weight(directory, "model.layers.2.mlp.up_proj.weight")
    with pytest.raises(UnsupportedModelError, match="more layers than the 2"):
        load(directory)


@pytest.mark.parametrize("body", [b"{", b"[1, true]", b"[-1]", b"{}", b"\xff\xfe"])
def test_a_broken_draft_vocabulary(directory, body):
    (directory / "draft_vocab.json").write_bytes(body)
    with pytest.raises(UnsupportedModelError, match=r"draft_vocab\.json"):
        load(directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("body", ["{", "[]", "null", "\x00"])
def test_a_broken_tokenizer_is_no_tokenizer(directory, caplog, name, body):
    (directory / name).write_text(body)
    assert load(directory).tokenizer.tokenizer_json == ""
    assert "tokenizer_unreadable" in caplog.text


@pytest.mark.parametrize("length", [0, 3, 4, 8, 24])
def test_a_gguf_file_that_ends_early(tmp_path, length):
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    (tmp_path / "model.gguf").write_bytes(header[:length])
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf"):
        load(tmp_path / "model.gguf")


@pytest.mark.parametrize("error", [struct.error, pickle.UnpicklingError, AssertionError, EOFError])
def test_what_readers_raise_is_our_error(directory, monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error("broken")

    monkeypatch.setattr("exspec.engine.loading.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(UnsupportedModelError, match="broken"):
        load(directory)


@pytest.mark.parametrize("name", ["~nosuchuser/x", "~nosuchuser.gguf", "x" * 5000])
def test_names_no_file_can_have(name):
    with pytest.raises(ModelNotFoundError, match="looked up"):
        load(name)


@pytest.mark.parametrize("number", [0, -5])
def test_a_context_of_nothing_is_refused(directory, number):
    rewrite_json(directory / "config.json", max_position_embeddings=number)
    with pytest.raises(UnsupportedModelError, match=f"max_position_embeddings = {number}"):
        load(directory)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (PretrainedConfig(max_target_positions=60, max_position_embeddings=100), 60),
        (PretrainedConfig(max_sequence_length=70), 70),
        (PretrainedConfig(seq_length=80), 80),
        (PretrainedConfig(n_ctx=90), 90),
        (GPT2Config(n_positions=50), 50),
        (LlamaConfig(max_position_embeddings=40), 40),
        (PretrainedConfig(), 2048),
    ],
)
def test_the_smallest_named_length_binds(config, length):
    assert max_length_of(config) == length
