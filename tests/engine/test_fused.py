"""A fused body computes what a draft's own modules do, and steps back where it would not."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from exspec.core.errors import InvalidRequestError
from exspec.engine.fused import fusing, linears
from exspec.engine.fused.fusing import give_up_layers
from exspec.engine.fused.linears import Precision, make_linear
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from tests.engine.conftest import make_prompts
from tests.engine.rounds import Limits, speculate
from tests.engine.tiny import MAX_LENGTH, VOCAB_SIZE, tiny_config, tiny_model

SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
SCALED = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS = {
    "llama-gqa": tiny_config("llama-gqa"),
    "llama-mha": tiny_config("llama-mha"),
    "llama-tied": tiny_config("llama-tied"),
    "llama-biased": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-scaled": LlamaConfig(
        **SMALL,
        rope_parameters=SCALED | {"rope_theta": 1e4, "original_max_position_embeddings": 64},
    ),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": tiny_config("qwen3"),
}
needs_int8 = pytest.mark.skipif(
    not linears.has_fast_int8(), reason="this processor has no fast products of bytes"
)


def build(name: str, dtype: torch.dtype, draft_weights: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():  # norms start at one and biases at zero; make them count
        for parameter, weights in model.named_parameters():
            if "norm" in parameter or parameter.endswith("bias"):
                weights.add_(torch.randn_like(weights) * 0.3)
    settings = ModelSettings(f"tiny-{name}", draft_weights=draft_weights)
    return wrap_model(model.to(dtype), settings)


def rounds_of(loaded, layout, **options):
    """Choices and logits of ragged prompts, blocks of different sizes, and a step back."""
    runner = ModelRunner(loaded, layout=layout, num_slots=4, capacity=96, **options)
    prompts = make_prompts(3, seed=4)
    slots = (3, 0, 1)
    seen = []
    for start, sizes in ((0, None), (0, (1, 4, 2)), (-2, (1, 1, 1))):
        rows = []
        for i, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
            at = 0 if sizes is None else max(0, len(prompt) + start)
            tokens = prompt if sizes is None else (5, 7, 11, 13)[: sizes[i]]
            rows.append(RowInput(slot, at, tokens, len(tokens)))
        placed = runner._pass(rows)
        for row in rows:
            runner._hold(row.slot, row.end)
        seen.append((placed.marked, placed.logits.logits))
    return seen


@pytest.mark.parametrize("name", CONFIGS)
def test_full_weights_compute_what_the_modules_do(name, layout):
    plain = build(name, torch.float64, "modules")
    fused = build(name, torch.float64, "full")
    assert plain.fused is None
    assert fused.fused is not None
    for expected, got in zip(rounds_of(plain, layout), rounds_of(fused, layout), strict=True):
        assert got[0] == expected[0]
        torch.testing.assert_close(got[1], expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("draft_weights", "tolerance"),
    [("full", 1e-4), ("bfloat16", 0.1), pytest.param("int8", 0.1, marks=needs_int8)],
)
def test_rounded_weights_stay_close(name, draft_weights, tolerance, layout):
    plain = rounds_of(build(name, torch.float32, "modules"), layout)
    loaded = build(name, torch.float32, draft_weights)
    assert loaded.fused is not None
    assert loaded.fused.precision is Precision(draft_weights)
    for expected, got in zip(plain, rounds_of(loaded, layout), strict=True):
        assert (got[1] - expected[1]).norm() <= tolerance * expected[1].norm()


def test_a_draft_that_is_the_target_gets_all_its_tokens_accepted(layout):
    plain = build("qwen3", torch.float64, "modules")
    drafts = ModelRunner(
        build("qwen3", torch.float64, "full"), layout=layout, num_slots=1, capacity=96
    )
    prompts = make_prompts(2, seed=9)

    def propose(request, new, k):
        fed, drafted, start = (*prompts[request], *new), [], 0
        while len(drafted) < k:
            drafted += drafts.forward([RowInput(0, start, fed, 1)]).choices[0]
            start, fed = start + len(fed), (drafted[-1],)
        drafts.release(0)
        return drafted

    runner = ModelRunner(plain, layout=layout, num_slots=2, capacity=96)
    for sequence in speculate(runner, prompts, propose, 5, Limits(18)):
        assert sequence.block_sizes == [6, 6, 6]


def test_positions_beyond_the_table_are_rotated_alike():
    tokens = tuple(i % VOCAB_SIZE for i in range(1100))
    rows = (RowInput(0, 0, tokens, 0), RowInput(0, len(tokens), (3, 5), 2))
    choices = []
    for draft_weights in ("modules", "full"):
        loaded = build("llama-scaled", torch.float64, draft_weights)
        runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=1, capacity=1200)
        choices.append([runner.forward([row]).choices for row in rows])
    assert choices[0] == choices[1]


def test_a_draft_vocabulary_cuts_the_fused_head(layout):
    ids = tuple(range(0, VOCAB_SIZE, 3))
    expected = rounds_of(build("qwen2", torch.float64, "modules"), layout, choices_among=ids)
    loaded = build("qwen2", torch.float64, "full")
    got = rounds_of(loaded, layout, choices_among=ids)
    assert [marked for marked, _ in got] == [marked for marked, _ in expected]
    with pytest.raises(InvalidRequestError, match="draft vocabulary"):
        ModelRunner(loaded, layout=layout, num_slots=1, capacity=8, choices_among=[VOCAB_SIZE])


@needs_int8
@torch.inference_mode()
def test_a_row_in_eight_bits_does_not_depend_on_its_company():
    torch.manual_seed(0)
    rows = torch.randn(7, 48) * torch.logspace(-3, 3, 7)[:, None]
    weight, bias = torch.randn(32, 48), torch.randn(32)
    product = make_linear(weight, bias, Precision.INT8, takes_many=False)
    together = product(rows)
    for row, result in zip(rows, together, strict=True):
        assert torch.equal(product(row[None])[0], result)
        exact = weight @ row + bias
        assert (result - exact).abs().amax() <= 0.03 * exact.abs().amax()
    assert torch.equal(product(torch.zeros(1, 48))[0], bias)
    assert product(torch.full((1, 48), torch.nan)).isnan().all()


@needs_int8
@torch.inference_mode()
@pytest.mark.parametrize("has_units", [True, False])
def test_many_rows_go_through_bfloat16_where_that_is_fast(has_units, monkeypatch):
    """Prompts; whatever the processor has, the product is the same but for rounding."""
    monkeypatch.setattr(linears, "has_matrix_units", lambda: has_units)
    torch.manual_seed(0)
    weight, bias = torch.randn(32, 48), torch.randn(32)
    product = make_linear(weight, bias, Precision.INT8, takes_many=True)
    few = make_linear(weight, bias, Precision.INT8, takes_many=False)
    for num_rows in (1, 8, 64):
        rows = torch.randn(num_rows, 48)
        exact = rows @ weight.T + bias
        result = product(rows)
        assert (result.dtype, result.shape) == (torch.float32, exact.shape)
        assert (result - exact).abs().amax() <= 0.03 * exact.abs().amax()
        assert torch.equal(result, few(rows)) == (num_rows < 64 or not has_units)


@needs_int8
def test_automatic_is_eight_bits_for_single_precision_only():
    single = build("llama-gqa", torch.float32, "auto").fused
    double = build("llama-gqa", torch.float64, "auto").fused
    assert single is not None
    assert double is not None
    assert (single.precision, double.precision) == (Precision.INT8, Precision.FULL)


def test_a_processor_slow_at_eight_bits_gets_full_weights(monkeypatch):
    monkeypatch.setattr(fusing, "has_fast_int8", lambda: False)
    fused = build("llama-gqa", torch.float32, "auto").fused
    assert fused is not None
    assert fused.precision is Precision.FULL


class _Adapter(nn.Linear):
    """Stands for a layer with something on top."""


def _put_adapter(model):
    layer = model.model.layers[1].mlp
    layer.down_proj = _Adapter(layer.down_proj.in_features, layer.down_proj.out_features)


def _put_module(model):
    model.model.layers[0].gate = nn.Identity()


def _put_other_norm(model):
    model.model.norm = nn.LayerNorm(32)


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("gpt2", lambda model: None, "GPT2LMHeadModel is none of the families"),
        ("glm4", lambda model: None, "Glm4ForCausalLM is none of the families"),
        ("llama-gqa", _put_adapter, "a projection is a _Adapter"),
        ("llama-gqa", _put_module, "a layer has gate"),
        ("llama-gqa", _put_other_norm, "LayerNorm is no norm of the kind"),
    ],
)
def test_what_is_not_as_expected_runs_by_its_modules(family, change, reason, caplog):
    model = tiny_model(family)
    change(model)
    model.to(torch.float64)
    with caplog.at_level(logging.WARNING):
        loaded = wrap_model(model, ModelSettings("odd", draft_weights="full"))
    assert loaded.fused is None
    assert f"draft.not_fused model=odd reason=full: {reason}" in caplog.text


def test_rotation_that_depends_on_the_length_runs_by_its_modules(caplog):
    """A table of more positions than a text has would be rotated as for a longer one."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 2.0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1200}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, rope_parameters=rope | factors))
    with caplog.at_level(logging.WARNING):
        loaded = wrap_model(model, ModelSettings("long", draft_weights="full"))
    assert loaded.fused is None
    assert "reason=full: how it rotates depends on the length of the text" in caplog.text


def test_a_body_that_computes_otherwise_is_not_used(caplog, monkeypatch):
    monkeypatch.setattr(fusing, "_ROUGH_TOLERANCES", {Precision.BFLOAT16: 1e-9})
    with caplog.at_level(logging.WARNING):
        fused = build("llama-gqa", torch.float32, "bfloat16").fused
    assert "reason=bfloat16: logits differ from the modules' by" in caplog.text
    assert fused is not None
    assert fused.precision is Precision.FULL
    monkeypatch.setattr(fusing, "read_fused", _wrong_scaling(fusing.read_fused))
    assert build("llama-gqa", torch.float64, "full").fused is None


def _wrong_scaling(honest):
    """A body that overlooks what its model does to attention scores."""

    def read(model, *rest):
        scalings = [layer.self_attn.scaling for layer in model.model.layers]
        for layer in model.model.layers:
            layer.self_attn.scaling = 3.0
        try:
            return honest(model, *rest)
        finally:
            for layer, scaling in zip(model.model.layers, scalings, strict=True):
                layer.self_attn.scaling = scaling

    return read


def test_layers_can_be_given_up_once_fused(layout):
    expected = rounds_of(build("llama-gqa", torch.float64, "full"), layout)
    loaded = build("llama-gqa", torch.float64, "full")
    give_up_layers(loaded.model)
    assert sum(p.numel() for p in loaded.model.parameters()) < 2 * 32 * VOCAB_SIZE + 64
    got = rounds_of(loaded, layout)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(expected, got, strict=True))
    assert loaded.facts.max_length == MAX_LENGTH
