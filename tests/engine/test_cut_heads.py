"""A head of some rows gives those rows' logits, whatever the model does to logits besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
)

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loaded import LoadedModel
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.packing import PackedLinear
from tests.engine.tiny import VOCAB_SIZE, tiny_loaded

IDS = (1, 5, 6, 40, 41, 77, 96)
PROMPT = tuple(range(10, 30))
WIDE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "eos_token_id": 0,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 128}
CONFIGS = {
    "untied": lambda: LlamaConfig(**WIDE, tie_word_embeddings=False),
    "tied": lambda: LlamaConfig(**WIDE, tie_word_embeddings=True),
    "tied, learned positions": lambda: GPT2Config(**GPT2, initializer_range=0.5, eos_token_id=0),
    "bias": lambda: PhiConfig(**WIDE, tie_word_embeddings=False),
    "divided logits": lambda: GraniteConfig(**WIDE, logits_scaling=8.0),
    "multiplied logits": lambda: CohereConfig(**WIDE, logit_scale=0.25),
}


def loaded_of(name: str, dtype: torch.dtype) -> LoadedModel:
    """A random model whose head has a bias that matters, if it has one."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]())
    bias = getattr(model.get_output_embeddings(), "bias", None)
    assert (bias is not None) is (name == "bias")
    if bias is not None:
        torch.nn.init.normal_(bias, std=3.0)
    return wrap_model(model.to(dtype), ModelSettings(name))


def runner_of(loaded: LoadedModel, num_slots: int = 2, **options) -> ModelRunner:
    return ModelRunner(
        loaded, layout=KvLayoutName.SLOTS, num_slots=num_slots, capacity=64, **options
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_choice_is_the_best_of_the_kept_tokens_and_logits_are_the_models(name, dtype):
    loaded = loaded_of(name, dtype)
    is_packed = isinstance(loaded.model.get_output_embeddings(), PackedLinear)
    assert is_packed is (dtype == torch.float32)
    whole, cut = runner_of(loaded), runner_of(loaded, choices_among=IDS)
    row = RowInput(0, 0, PROMPT, len(PROMPT))
    with torch.inference_mode():
        passes = [runner._pass([row]).logits for runner in (whole, cut)]
    everything, some = (one.logits for one in passes)
    assert some.shape == (len(PROMPT), len(IDS))
    torch.testing.assert_close(some, everything[:, list(IDS)], rtol=1e-4, atol=1e-4)
    best = [IDS[place] for place in everything[:, list(IDS)].argmax(-1).tolist()]
    assert list(passes[1].choices()) == best
    assert len(set(best)) > 2


@pytest.mark.parametrize("name", ["untied", "divided logits", "multiplied logits"])
def test_draws_are_those_of_the_whole_head_with_all_other_tokens_banned(name):
    loaded = loaded_of(name, torch.float64)
    whole, cut = runner_of(loaded), runner_of(loaded, choices_among=IDS)
    rules = ChoiceRules(len(PROMPT), temperature=1.0, seed=5)
    banned = whole.open_choosing(replace(rules, allowed_token_ids=IDS))
    steps = [RowInput(0, 0, PROMPT, 1, banned), RowInput(0, 0, PROMPT, 1, cut.open_choosing(rules))]
    drawn = [
        runner.forward([step]).choices for runner, step in zip((whole, cut), steps, strict=True)
    ]
    assert drawn[0] == drawn[1]


def test_the_whole_head_is_back_after_a_pass_that_failed():
    loaded = loaded_of("untied", torch.float64)
    head = loaded.model.get_output_embeddings()
    cut = runner_of(loaded, choices_among=IDS)

    def fail(*_):
        raise RuntimeError("no memory left")

    handle = loaded.model.get_input_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory left"):
        cut.forward([RowInput(0, 0, PROMPT, 1)])
    handle.remove()
    assert loaded.model.get_output_embeddings() is head
    assert cut.forward([RowInput(0, 0, PROMPT, 1)]).choices[0][0] in IDS


def test_what_cannot_be_cut_is_refused(monkeypatch):
    loaded = tiny_loaded("llama-gqa")
    for ids in ((), (-1,), (VOCAB_SIZE,)):
        with pytest.raises(InvalidRequestError, match=rf"\[0, {VOCAB_SIZE}\)") as caught:
            runner_of(loaded, choices_among=ids)
        assert caught.value.field == "draft_vocab"
    whole = loaded.model.get_output_embeddings()
    monkeypatch.setattr(type(loaded.model), "get_output_embeddings", lambda _: torch.nn.Identity())
    with pytest.raises(UnsupportedModelError, match="no linear head"):
        runner_of(loaded, choices_among=IDS)
    other = torch.nn.Linear(whole.in_features, VOCAB_SIZE, dtype=torch.float64)
    monkeypatch.setattr(type(loaded.model), "get_output_embeddings", lambda _: other)
    with pytest.raises(UnsupportedModelError, match="other means"):
        runner_of(loaded, choices_among=IDS).warm_up()


RIVALS = (40, 3, 96, 5, VOCAB_SIZE + 7)
"""Some that the cut head has, some that it has not, one that no head has."""


@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "cut"])
def test_chances_are_those_of_the_last_choice_and_its_rivals_among_the_tokens_of_the_head(ids):
    loaded = loaded_of("divided logits", torch.float64)
    rows = [
        RowInput(0, 0, PROMPT, 2, wants_chance=True, rivals=RIVALS),
        RowInput(1, 0, PROMPT[:4], 1),
        RowInput(2, 0, PROMPT, 1, wants_chance=True, rivals=RIVALS[:1]),
        RowInput(3, 0, PROMPT, 1, wants_chance=True),
    ]
    with torch.inference_mode():
        whole = runner_of(loaded)._pass([RowInput(0, 0, PROMPT, 1)]).logits.logits[0]
    own = whole if ids is None else torch.full_like(whole, -torch.inf)
    if ids is not None:
        own[list(ids)] = whole[list(ids)]
    own = own.softmax(-1)
    expected = [own.max(), *own[list(RIVALS[:-1])], 0.0]
    approximate = [pytest.approx(float(chance), rel=1e-5) for chance in expected]
    found = runner_of(loaded, choices_among=ids, num_slots=4).forward(rows).chances
    assert [list(chances) for chances in found] == [
        approximate,
        [],
        approximate[:2],
        approximate[:1],
    ]
    assert runner_of(loaded).forward([RowInput(1, 0, (3,), 0, wants_chance=True)]).chances == ((),)
