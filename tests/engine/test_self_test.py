"""Models that are not what they seem: seen by what they compute, not by what they are called."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    AfmoeConfig,
    AutoModelForCausalLM,
    BartConfig,
    DeepseekV3Config,
    JetMoeConfig,
    Llama4TextConfig,
    PhimoeConfig,
    Qwen2MoeConfig,
)

from exspec.core.errors import UnsupportedModelError
from exspec.engine.kv import hf_adapter
from exspec.engine.kv.hf_adapter import PassCache
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.probe import probe_attention
from exspec.engine.reference import generate_plain
from exspec.engine.self_test import check_computation
from exspec.engine.support import check_config
from tests.engine.tiny import FAMILIES, tiny_model

FULL = ["full_attention"] * 2
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 0,
    "bos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def build(config, dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(dtype)


def wrapped(config, dtype=torch.float32):
    return wrap_model(build(config, dtype), ModelSettings("tiny"))


def bart():
    return BartConfig(
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=32,
        vocab_size=50,
        is_decoder=True,
        is_encoder_decoder=False,
    )


def latent_attention():
    return DeepseekV3Config(
        **(SMALL | {"num_key_value_heads": 4}),
        kv_lora_rank=48,
        q_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=1,
        first_k_dense_replace=2,
    )


def tuned_temperature():
    return Llama4TextConfig(
        **SMALL,
        head_dim=8,
        intermediate_size_mlp=32,
        num_local_experts=2,
        no_rope_layers=[1, 0],
        attn_temperature_tuning=True,
        floor_scale=4,
        attention_chunk_size=None,
        layer_types=FULL,
    )


def jetmoe():
    return JetMoeConfig(
        **{k: v for k, v in SMALL.items() if k != "num_attention_heads"},
        kv_channels=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (bart(), "explicit positions"),
        (latent_attention(), "what the cache returned"),
        (jetmoe(), "what the cache returned"),
        (tuned_temperature(), "length of the cache"),
    ],
    ids=["bart", "deepseek_v3", "jetmoe", "llama4"],
)
def test_the_probe_refuses_what_the_cache_cannot_answer(config, words):
    with pytest.raises(UnsupportedModelError, match=words):
        probe_attention(build(config))


def test_layer_types_count_only_in_families_that_know_them():
    config = PhimoeConfig(**SMALL, sliding_window=6, layer_types=FULL)
    with pytest.raises(UnsupportedModelError, match="window of 6"):
        check_config(config)
    check_config(PhimoeConfig(**SMALL, sliding_window=None))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_self_test_accepts_honest_models(family, dtype):
    model = tiny_model(family, dtype=dtype)
    check_computation(model.eval(), probe_attention(model), 256)


@pytest.mark.parametrize("max_length", [1, 2, 3, 5, 13])
def test_the_self_test_stays_within_short_contexts(max_length):
    model = tiny_model("gpt2").eval()
    check_computation(model, probe_attention(model), max_length)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_self_test_sees_another_computation(family, dtype, monkeypatch):
    """Attention with a scale of its own stands for all that could differ."""
    model = tiny_model(family, dtype=dtype).eval()
    attention = probe_attention(model)
    honest = hf_adapter.attend
    monkeypatch.setattr(hf_adapter, "attend", lambda *a: honest(*a[:-1], 3.0))
    with pytest.raises(UnsupportedModelError, match="differently"):
        check_computation(model, attention, 256)


def test_the_self_test_sees_stale_keys(monkeypatch):
    """A cache that never overwrites keeps the token that was taken back."""
    model = tiny_model("llama-gqa").eval()
    attention = probe_attention(model)
    honest, written = PassCache.update, set()

    def once(self, keys, values, layer_idx, *args, **kwargs):
        store, plan = self._store, self._plan
        before = [memory[layer_idx].clone() for memory in (store._keys, store._values)]
        result = honest(self, keys, values, layer_idx, *args, **kwargs)
        for address in plan.write_addresses.tolist():
            if (layer_idx, address) in written:
                for memory, old in zip((store._keys, store._values), before, strict=True):
                    dim = memory.shape[-1]
                    memory[layer_idx].view(-1, dim)[address] = old.view(-1, dim)[address]
            written.add((layer_idx, address))
        return result

    monkeypatch.setattr(PassCache, "update", once)
    with pytest.raises(UnsupportedModelError, match="differently"):
        check_computation(model, attention, 256)


def test_a_model_of_nan_is_refused():
    model = tiny_model("llama-gqa")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UnsupportedModelError, match="not finite"):
        wrap_model(model, ModelSettings("nan"))


def test_a_mixture_of_experts_runs_in_float64(layout):
    config = Qwen2MoeConfig(**SMALL, **EXPERTS, shared_expert_intermediate_size=16)
    loaded = wrapped(config, torch.float64)
    runner = ModelRunner(loaded, layout=layout, num_slots=2, capacity=32)
    choices = runner.forward([RowInput(0, 0, (3, 4, 5), 1), RowInput(1, 0, (6,), 1)]).choices
    assert choices == tuple(generate_plain(loaded, p, 1, ()) for p in ((3, 4, 5), (6,)))


@pytest.mark.parametrize("prompts", [((3,),), ((3, 4, 5),), ((3, 4), (5, 6)), ((3, 4, 5), (3,))])
def test_attention_is_contiguous_as_some_models_want_it(prompts, monkeypatch):
    config = AfmoeConfig(
        **SMALL, **EXPERTS, head_dim=8, num_dense_layers=2, sliding_window=6, layer_types=FULL
    )
    loaded = wrapped(config)
    runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=2, capacity=32)
    honest, outputs = hf_adapter.attend, []
    monkeypatch.setattr(hf_adapter, "attend", lambda *a: outputs.append(honest(*a)) or outputs[-1])
    choices = runner.forward([RowInput(i, 0, p, 1) for i, p in enumerate(prompts)]).choices
    assert choices == tuple(generate_plain(loaded, p, 1, ()) for p in prompts)
    assert all(output.is_contiguous() for output in outputs)


def test_a_head_wider_than_the_embedding_is_refused():
    model = tiny_model("llama-gqa")
    model.lm_head = torch.nn.Linear(32, 120, bias=False, dtype=torch.float64)
    with pytest.raises(UnsupportedModelError, match="120 token ids and can be fed only 97"):
        wrap_model(model, ModelSettings("wide"))


def test_failures_in_the_probe_are_not_blamed_on_positions(monkeypatch):
    model = tiny_model("llama-gqa").eval()

    def fail(*_args, **_kwargs):
        raise RuntimeError("expected Float, got Double")

    monkeypatch.setattr(model.model.layers[0].mlp, "forward", fail)
    with pytest.raises(UnsupportedModelError, match="failed in a small pass"):
        probe_attention(model)


def test_honest_attention_shapes_are_what_they_were():
    shape = probe_attention(tiny_model("llama-gqa"))
    assert replace(shape, num_layers=0) == hf_adapter.AttentionShape(0, 4, 2, 8, 8)
