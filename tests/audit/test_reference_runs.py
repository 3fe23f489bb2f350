"""The judge on a tiny model: its decoding, its cache, and what it says about a difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from exspec.audit.compare import Difference, DifferenceKind
from exspec.audit.equality import Question
from exspec.audit.reference_cache import ReferenceCache
from exspec.audit.reference_runs import ReferenceDecoder
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.reference import generate_plain

PROMPT = (5, 6, 7, 8)
STOPS = (0,)
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Random weights with logits far enough apart that rounding decides nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        eos_token_id=0,
    )
    path = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


def decoder_of(model_dir, dtype="float32", served_dtype="float32", cache=None):
    settings = ModelSettings(model_dir, dtype=dtype, device="cpu")
    return ReferenceDecoder(settings, served_dtype, cache or ReferenceCache())


def asked(prompt=PROMPT, rules=None):
    return Question("0", "", prompt, rules)


def other_token(reference, position, served_token):
    return Difference(DifferenceKind.OTHER_TOKEN, position, reference[position], served_token)


def test_it_decodes_plainly_and_saves(model_dir, tmp_path):
    cache = ReferenceCache(tmp_path / "cache.json")
    decoder = decoder_of(model_dir, cache=cache)
    done = []
    prompts = [PROMPT, (9,)]
    questions = [asked(prompt) for prompt in prompts]
    found = decoder.decode_all(questions, MAX_TOKENS, STOPS, lambda: done.append(1))
    loaded = load_model(ModelSettings(model_dir, dtype="float32", device="cpu"))
    assert found == tuple(generate_plain(loaded, p, MAX_TOKENS, STOPS) for p in prompts)
    assert len(done) == ReferenceCache(tmp_path / "cache.json").num_references == 2


def test_a_known_reference_is_not_computed_again(model_dir, monkeypatch):
    cache = ReferenceCache()
    first = decoder_of(model_dir, cache=cache).decode(asked(), MAX_TOKENS, STOPS)
    monkeypatch.setattr("exspec.audit.reference_runs.generate_plain", pytest.fail)
    assert decoder_of(model_dir, cache=cache).decode(asked(), MAX_TOKENS, STOPS) == first


@pytest.mark.parametrize(
    ("dtype", "served_dtype"),
    [("float32", "float32"), ("float64", "float32"), ("bfloat16", "bfloat16")],
)
def test_a_difference_is_weighed_in_float64(model_dir, dtype, served_dtype):
    decoder = decoder_of(model_dir, dtype, served_dtype)
    reference = decoder.decode(asked(), MAX_TOKENS, STOPS)
    position = 3
    found = decoder.weigh(asked(), reference[:position], other_token(reference, position, 96))
    assert found.best_token == reference[position]
    assert found.reference_gap == 0.0
    assert found.served_gap >= found.margin > 0
    assert 0 < found.rounding_error < (1e-3 if served_dtype == "float32" else 1.0)
    second = other_token(reference, position, found.second_token)
    assert decoder.weigh(asked(), reference[:position], second).served_gap == found.margin


def test_a_wrong_token_is_no_tie_and_a_token_like_the_best_is(model_dir):
    decoder = decoder_of(model_dir)
    reference = decoder.decode(asked(), MAX_TOKENS, STOPS)
    assert not decoder.weigh(asked(), (), other_token(reference, 0, 96)).is_tie
    model = decoder._loaded.model
    exact = decoder._exact_model()
    for one in (model, exact):  # two rows of the embedding are one: their logits tie exactly
        head = one.get_output_embeddings()
        twin = reference[0]
        with torch.no_grad():
            weight = head.weight.detach().clone()
            weight[96] = weight[twin]
            plain = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            plain.weight = torch.nn.Parameter(weight)
            one.set_output_embeddings(plain)
    found = decoder.weigh(asked(), (), other_token(reference, 0, 96))
    assert found.is_tie
    assert found.margin == found.served_gap == 0.0


DRAWN = ChoiceRules(len(PROMPT), temperature=1.0, top_p=0.8, seed=3)


def test_rules_are_followed_and_part_of_what_is_remembered(model_dir):
    cache = ReferenceCache()
    decoder = decoder_of(model_dir, cache=cache)
    drawn = decoder.decode(asked(rules=DRAWN), MAX_TOKENS, STOPS)
    assert drawn == generate_plain(decoder._loaded, PROMPT, MAX_TOKENS, STOPS, DRAWN)
    assert drawn != decoder.decode(asked(), MAX_TOKENS, STOPS)
    assert decoder.decode(asked(rules=DRAWN), MAX_TOKENS, STOPS) == drawn
    assert cache.num_references == 2


def test_a_draw_is_weighed_by_what_would_have_made_it_another(model_dir):
    """A token that was cut, and one that another seed would have drawn, are no matter of rounding;
    one whose sum of logit and noise is the same as the best is."""
    decoder = decoder_of(model_dir)
    question = asked(rules=DRAWN)
    reference = decoder.decode(question, MAX_TOKENS, STOPS)
    other = decoder.decode(asked(rules=replace(DRAWN, seed=5)), MAX_TOKENS, STOPS)
    place = next(i for i in range(MAX_TOKENS) if reference[i] != other[i])
    for served in (other[place], 96):
        found = decoder.weigh(question, reference[:place], other_token(reference, place, served))
        assert found.best_token == reference[place]
        assert found.reference_gap == 0.0
        assert found.served_gap > 0.01
        assert not found.is_tie
    second = other_token(reference, place, found.second_token)
    lead = decoder.weigh(question, reference[:place], second).margin
    assert not decoder.weigh(question, reference[:place], second).is_tie
    assert replace(found, served_gap=lead, rounding_error=lead).is_tie


def test_other_weights_are_refused(model_dir):
    decoder = decoder_of(model_dir)
    decoder.require_same_weights(decoder.facts)
    decoder.require_same_weights(replace(decoder.facts, dtype="bfloat16", fingerprint="other"))
    with pytest.raises(InvalidRequestError, match="not the same weights"):
        decoder.require_same_weights(replace(decoder.facts, fingerprint="other"))
