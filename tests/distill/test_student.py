"""Students are the target's own kind of model, smaller, with the target's weights in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.distill import growing, weights
from exspec.distill.plan import DistillPlan
from exspec.distill.student import build_student, frozen_parts
from exspec.engine.packing import pack_linears
from tests.engine.tiny import FAMILIES, tiny_config, tiny_model

TOKENS = torch.tensor([[5, 6, 7, 80, 9, 3, 3, 0]])


def a_plan(**values) -> DistillPlan:
    return DistillPlan(**{"target": "tiny", "out": Path("out"), "num_layers": 1, **values})


def model_of(family: str, num_layers: int = 4, **changes):
    config = tiny_config(family)
    for name, value in {"num_hidden_layers": num_layers, **changes}.items():
        setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * num_layers
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config)


def logits_of(model):
    with torch.inference_mode():
        return model(TOKENS).logits


@pytest.mark.parametrize("family", [*FAMILIES, "llama-tied"])
def test_a_student_of_all_layers_is_the_target(family):
    target = tiny_model(family, dtype=torch.float32).eval()
    student = build_student(target, a_plan(num_layers=2))
    assert type(student) is type(target)
    assert student.dtype == torch.float32
    assert torch.equal(logits_of(student), logits_of(target))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_student_is_the_target_without_the_layers_that_were_not_chosen(family):
    """Seen by turning those layers of the target into nothing: residuals pass through."""
    target = model_of(family).eval()
    student = build_student(target, a_plan(num_layers=2, from_layers=(0, 2)))
    assert student.config.num_hidden_layers == 2
    name = next(n for n, m in target.named_modules() if n.endswith(("layers", ".h")))
    layers = target.get_submodule(name)
    for index in (3, 1):
        del layers[index]
    assert torch.equal(student(TOKENS).logits, target(TOKENS, use_cache=False).logits)


def test_layers_are_spread_over_the_target_with_the_first_and_the_last():
    target = model_of("llama-gqa", num_layers=7)
    for number, expected in ((1, (0,)), (2, (0, 6)), (3, (0, 3, 6)), (4, (0, 2, 4, 6))):
        student = build_student(target, a_plan(num_layers=number))
        for mine, theirs in enumerate(expected):
            assert torch.equal(
                student.model.layers[mine].mlp.up_proj.weight,
                target.model.layers[theirs].mlp.up_proj.weight,
            )


def test_a_target_packed_for_serving_gives_its_weights_too():
    target = model_of("llama-gqa").eval()
    expected = logits_of(build_student(target, a_plan(num_layers=2)))
    assert pack_linears(target)
    assert torch.equal(logits_of(build_student(target, a_plan(num_layers=2))), expected)


def test_embedding_and_head_are_frozen_at_the_targets_width_and_all_else_is_trained():
    student = build_student(model_of("llama-gqa"), a_plan())
    assert set(frozen_parts(student)) == {"model.embed_tokens.weight", "lm_head.weight"}
    tied = build_student(model_of("llama-tied"), a_plan())
    assert set(frozen_parts(tied)) == {"model.embed_tokens.weight"}
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert not frozen_parts(build_student(model_of("llama-gqa"), a_plan(hidden_size=16)))


def test_settings_per_layer_follow_the_chosen_layers():
    config = Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=97, use_sliding_window=True,
        layer_types=["full_attention"] * 3 + ["sliding_attention"], eos_token_id=[0, 1, 2, 3],
    )  # fmt: skip
    student = build_student(AutoModelForCausalLM.from_config(config), a_plan(num_layers=2))
    assert student.config.layer_types == ["full_attention", "sliding_attention"]
    assert student.config.eos_token_id == [0, 1, 2, 3]


def test_experts_and_dense_layers_stay_what_they_are():
    config = Qwen3MoeConfig(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=97, num_experts=4,
        num_experts_per_tok=2, mlp_only_layers=[3],
    )  # fmt: skip
    target = AutoModelForCausalLM.from_config(config).eval()
    student = build_student(target, a_plan(num_layers=2))
    assert student.config.mlp_only_layers == [1]
    theirs = target.model.layers[3].mlp.up_proj.weight
    assert torch.equal(student.model.layers[1].mlp.up_proj.weight, theirs)


def test_a_layer_of_another_shape_is_refused_by_name():
    target = model_of("llama-gqa")
    target.model.layers[3].mlp.up_proj = torch.nn.Linear(32, 40, bias=False)
    with pytest.raises(UnsupportedModelError, match=r"up_proj.weight is \(40, 32\)"):
        build_student(target, a_plan(num_layers=2))


@pytest.mark.parametrize("family", [*FAMILIES, "llama-tied"])
def test_a_narrower_student_runs_and_keeps_what_an_embedding_can_keep(family):
    target = model_of(family).eval()
    student = build_student(target, a_plan(num_layers=2, hidden_size=24))
    assert student.config.hidden_size == 24
    assert logits_of(student).shape == (1, TOKENS.shape[1], 97)
    mine = student.get_input_embeddings().weight.detach()
    theirs = target.get_input_embeddings().weight.detach()
    singular = torch.linalg.svdvals(theirs)
    assert mine.norm() ** 2 == pytest.approx(float((singular[:24] ** 2).sum()), rel=1e-4)
    assert all(part.requires_grad for part in student.parameters())


def test_a_narrower_student_keeps_the_size_of_heads_and_groups():
    config = LlamaConfig(
        hidden_size=144, intermediate_size=384, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=97,
    )  # fmt: skip
    student = build_student(AutoModelForCausalLM.from_config(config), a_plan(hidden_size=96))
    smaller = student.config
    assert (smaller.num_attention_heads, smaller.num_key_value_heads) == (6, 2)
    assert (smaller.head_dim, smaller.intermediate_size) == (16, 256)
    other = build_student(AutoModelForCausalLM.from_config(config), a_plan(hidden_size=64))
    assert (other.config.num_attention_heads, other.config.num_key_value_heads) == (4, 1)


def test_the_same_plan_gives_the_same_narrow_student():
    target = model_of("llama-gqa")
    first, second = (build_student(target, a_plan(hidden_size=16)) for _ in range(2))
    assert torch.equal(logits_of(first), logits_of(second))
    other = build_student(target, a_plan(hidden_size=16, seed=1))
    assert not torch.equal(logits_of(first), logits_of(other))


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"num_layers": 5}, "num_layers", "5 layers cannot be made from a target of 4"),
        ({"from_layers": (4,)}, "from_layers", "layers 0 to 3, and no layer 4"),
        ({"hidden_size": 20}, "hidden_size", "multiple of 8, at most 32"),
        ({"hidden_size": 64}, "hidden_size", "multiple of 8, at most 32"),
    ],
)
def test_what_the_target_cannot_give_is_refused_by_name(values, field, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        build_student(model_of("llama-gqa"), a_plan(**values))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_layers": 2, "from_layers": (0,)}, "from_layers"),
        ({"num_layers": 2, "from_layers": (3, 1)}, "from_layers"),
        ({"num_layers": 2, "from_layers": (1, 1)}, "from_layers"),
        ({"from_layers": (-1,)}, "from_layers"),
        ({"draft_vocab": -1}, "draft_vocab"),
        ({"num_tokens": 0}, "num_tokens"),
        ({"num_epochs": 0.0}, "num_epochs"),
        ({"num_epochs": float("nan")}, "num_epochs"),
        ({"minutes": 0.0}, "minutes"),
        ({"learning_rate": 2.0}, "learning_rate"),
        ({"dtype": "int8"}, "dtype"),
        ({"seed": -1}, "seed"),
        ({"num_labels": 0}, "num_labels"),
        ({"target": ""}, "target"),
    ],
)
def test_a_plan_out_of_bounds_is_refused_by_field(values, field):
    with pytest.raises(InvalidRequestError) as caught:
        a_plan(**values)
    assert caught.value.field == field


def test_a_draft_that_was_made_before_is_trained_further():
    target, plan = model_of("llama-gqa"), a_plan(num_layers=2, start_from="old")
    old = build_student(target, a_plan(num_layers=2))
    with torch.no_grad():
        for part in old.parameters():
            part.add_(0.25)
    student = build_student(target, plan, old)
    for name, part in student.named_parameters():
        source = old if part.requires_grad else target
        assert torch.equal(part, source.get_parameter(name)), name


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {}, "old is a GPT2LMHeadModel of 2 layers; .* a LlamaForCausalLM of 2"),
        ("llama-mha", {}, r"another shape .*k_proj.weight is \(32, 32\), not \(16, 32\)"),
    ],
)
def test_a_draft_of_another_shape_is_not_trained_further(family, changes, words):
    old = build_student(model_of(family), a_plan(**{"num_layers": 2, **changes}))
    with pytest.raises(InvalidRequestError, match=words) as caught:
        build_student(model_of("llama-gqa"), a_plan(num_layers=2, start_from="old"), old)
    assert caught.value.field == "start_from"


def test_a_draft_of_more_layers_is_not_trained_further():
    old = build_student(model_of("llama-gqa"), a_plan(num_layers=2))
    with pytest.raises(
        InvalidRequestError, match=r"old is a LlamaForCausalLM of 2 layers; .* of 1"
    ):
        build_student(model_of("llama-gqa"), a_plan(num_layers=1, start_from="old"), old)


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3", "gpt2", "opt", "glm4"])
def test_a_draft_grows_deeper_without_unlearning(family):
    """It says the same with new layers, and these can learn."""
    target = model_of(family)
    old = build_student(target, a_plan(num_layers=1, from_layers=(1,)))
    with torch.no_grad():
        for part in old.parameters():
            if part.requires_grad:
                part.mul_(1.1)
    student = build_student(target, a_plan(num_layers=2, start_from="old"), old)
    ids = torch.tensor([[5, 9, 23, 7, 40]])
    torch.testing.assert_close(student(ids).logits, old(ids).logits, rtol=1e-4, atol=1e-4)
    student(ids).logits.square().sum().backward()
    layers = weights.layer_lists(student, 2)
    grown = [p for n, p in student.named_parameters() if n.startswith(f"{layers[0]}0.")]
    assert sum(float(part.grad.abs().sum()) for part in grown if part.grad is not None) > 0


def test_layers_that_cannot_be_silent_are_not_added(monkeypatch):
    old = build_student(model_of("llama-gqa"), a_plan(num_layers=1))
    monkeypatch.setattr(growing, "_silence", lambda student, added: None)
    with pytest.raises(UnsupportedModelError, match="cannot be added to a draft"):
        build_student(model_of("llama-gqa"), a_plan(num_layers=2, start_from="old"), old)


def test_a_class_without_a_list_of_layers_is_refused():
    target = model_of("llama-gqa")
    target.model.layers = torch.nn.ModuleDict(
        {str(i): layer for i, layer in enumerate(target.model.layers)}
    )
    with pytest.raises(UnsupportedModelError, match="in no list"):
        build_student(target, a_plan())
