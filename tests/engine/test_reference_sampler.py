"""The judge of choices is held against transformers' own `generate`, and against sums by hand."""

from __future__ import annotations

import math

import pytest
import torch

from exspec.core.choosing import ChoiceRules
from exspec.engine.kv.hf_adapter import native_attention
from exspec.engine.reference import decode_plain, generate_plain, sampler_of, top2_margin
from exspec.engine.reference_margins import needed_change
from exspec.engine.reference_noise import _splitmix64, gumbel_noise, uniform
from exspec.engine.reference_sampler import ReferenceSampler
from tests.engine.conftest import loaded_family
from tests.engine.tiny import VOCAB_SIZE

PROMPT = (5, 9, 5, 60, 33)
NUM_TOKENS = 10
HALF = tuple(range(0, VOCAB_SIZE, 2))
REMOVED = -float("inf")


@pytest.fixture(scope="module")
def loaded():
    return loaded_family("llama-gqa")


def of_transformers(loaded, **options):
    """What `generate` makes of the logits: (the tokens, its processed scores at each of them)."""
    torch.manual_seed(4)
    with native_attention(loaded.model):
        out = _generate(loaded, options)
    return out.sequences[0, len(PROMPT) :].tolist(), [scores[0] for scores in out.scores]


def _generate(loaded, options):
    return loaded.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        eos_token_id=options.pop("eos_token_id", None),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


GREEDY = {
    "plain": ({}, {}),
    "repetition": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "banned": ({"banned_token_ids": HALF}, {"suppress_tokens": list(HALF)}),
    "bias": ({"logit_bias": ((7, 4.5), (8, -2.25))}, {"sequence_bias": {(7,): 4.5, (8,): -2.25}}),
    "together": (
        {"repetition_penalty": 0.8, "logit_bias": ((5, 3.0),), "banned_token_ids": (60, 9)},
        {"repetition_penalty": 0.8, "sequence_bias": {(5,): 3.0}, "suppress_tokens": [60, 9]},
    ),
}


@pytest.mark.parametrize("name", GREEDY)
def test_the_best_token_is_that_of_generate(loaded, name):
    ours, theirs = GREEDY[name]
    expected, _ = of_transformers(loaded, do_sample=False, **theirs)
    rules = ChoiceRules(len(PROMPT), **ours)
    assert list(generate_plain(loaded, PROMPT, NUM_TOKENS, (), rules)) == expected


def test_bad_words_and_the_least_number_of_tokens_are_those_of_generate(loaded):
    free, _ = of_transformers(loaded, do_sample=False)
    words = (tuple(free[1:3]), tuple(free[4:7]), (free[8],), (PROMPT[-1], free[0]))
    expected, _ = of_transformers(loaded, do_sample=False, bad_words_ids=[list(w) for w in words])
    rules = ChoiceRules(len(PROMPT), bad_words=words)
    assert list(generate_plain(loaded, PROMPT, NUM_TOKENS, (), rules)) == expected != free
    end = free[2]
    expected, _ = of_transformers(loaded, do_sample=False, eos_token_id=end, min_new_tokens=6)
    rules = ChoiceRules(len(PROMPT), min_tokens=6, ending_token_ids=(end,))
    found = generate_plain(loaded, PROMPT, NUM_TOKENS, (end,), rules)
    assert list(found) == expected
    assert len(found) >= 6


SAMPLED = {
    "temperature": {"temperature": 0.6},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 1.3, "top_p": 0.7},
    "min_p": {"temperature": 2.0, "min_p": 0.2},
    "typical_p": {"temperature": 1.5, "typical_p": 0.6},
    "all": {
        "temperature": 1.7,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "repetition_penalty": 1.2,
    },
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_drawn_from_is_the_law_of_generate(loaded, name):
    """Along a sequence that transformers drew, position by position."""
    options = SAMPLED[name]
    drawn, scores = of_transformers(loaded, do_sample=True, **{"top_k": 0, **options})
    sampler = ReferenceSampler(ChoiceRules(len(PROMPT), **options))
    log = [*PROMPT, *drawn]
    logits = loaded_logits(loaded, log)
    for place, expected in enumerate(scores, start=len(PROMPT)):
        law = sampler.log_law(logits[place - 1], log[:place])
        assert torch.equal(law == REMOVED, expected == REMOVED)
        torch.testing.assert_close(law, expected.double().log_softmax(-1), atol=1e-4, rtol=0)


def loaded_logits(loaded, tokens):
    """Logits `[len(tokens), vocab_size]` without any cache."""
    with torch.inference_mode(), native_attention(loaded.model):
        return loaded.model(torch.tensor([tokens]), use_cache=False).logits[0]


def choose(logits, tokens=(0,), **rules):
    sampler = ReferenceSampler(ChoiceRules(rules.pop("num_prompt_tokens", 1), **rules))
    return sampler.choose(torch.tensor(logits, dtype=torch.float64), tokens)


def test_penalties_by_hand():
    """Presence once per token, frequency once per occurrence, neither for tokens of the prompt."""
    log = (3, 3, 1, 1, 2)
    rules = ChoiceRules(2, presence_penalty=0.5, frequency_penalty=0.25)
    found = ReferenceSampler(rules).masked(torch.zeros(4), log)
    assert found.tolist() == [0.0, -1.0, -0.75, 0.0]
    rules = ChoiceRules(2, repetition_penalty=2.0)
    found = ReferenceSampler(rules).masked(torch.tensor([1.0, 1.0, -1.0, 3.0]), log)
    assert found.tolist() == [1.0, 0.5, -2.0, 1.5]


def test_bias_comes_before_the_penalty_and_the_penalty_before_the_ban():
    rules = ChoiceRules(1, logit_bias=((0, -3.0),), repetition_penalty=2.0, banned_token_ids=(1,))
    found = ReferenceSampler(rules).masked(torch.tensor([1.0, 9.0, 1.0]), (0,))
    assert found.tolist() == [-4.0, REMOVED, 1.0]


def test_the_lowest_id_wins_a_tie():
    assert choose([1.0, 2.0, 2.0, 0.0]) == 1


def test_of_equals_at_the_border_of_top_p_the_lower_id_stays():
    law = ReferenceSampler(ChoiceRules(1, temperature=1.0, top_p=0.5)).log_law(torch.zeros(4), (0,))
    assert law.tolist() == [-math.log(2)] * 2 + [REMOVED] * 2


def test_nothing_is_chosen_where_nothing_is_left():
    assert choose([1.0, 2.0], banned_token_ids=(0, 1)) is None
    assert choose([1.0, 2.0], banned_token_ids=(0, 1), temperature=1.0) is None
    assert choose([1.0, 2.0], allowed_token_ids=(1,), banned_token_ids=(0,)) == 1


def test_decoding_stops_where_nothing_is_left(loaded):
    free = generate_plain(loaded, PROMPT, 6, ())
    rules = ChoiceRules(len(PROMPT), allowed_token_ids=(free[0],), bad_words=((free[0],) * 3,))
    run = decode_plain(loaded, PROMPT, 6, (), sampler_of(loaded, len(PROMPT), rules))
    assert run.is_stuck
    assert run.tokens == (free[0],) * 2


def test_logprobs_are_those_of_the_bare_logits(loaded):
    rules = ChoiceRules(
        len(PROMPT), temperature=2.0, top_k=2, num_logprobs=3, num_prompt_logprobs=1
    )
    run = decode_plain(loaded, PROMPT, 4, (), sampler_of(loaded, len(PROMPT), rules))
    law = loaded_logits(loaded, [*PROMPT, *run.tokens]).log_softmax(-1)
    assert [one.token_id for one in run.prompt_logprobs] == list(PROMPT[1:])
    assert [one.token_id for one in run.logprobs] == list(run.tokens)
    for place, one in enumerate((*run.prompt_logprobs, *run.logprobs)):
        top = law[place].topk(len(one.top))
        assert [token for token, _ in one.top] == top.indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(top.values.tolist(), abs=1e-6)
        assert one.logprob == pytest.approx(float(law[place, one.token_id]), abs=1e-6)


def test_the_hash_is_splitmix64():
    """Its author's first numbers for the seed 1234567."""
    known = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    assert tuple(_splitmix64(1234567, step) for step in range(1, 5)) == known


def test_noise_belongs_to_seed_position_and_token():
    keys = [(seed, place, token) for seed in (0, 1, 2**63) for place in (0, 1) for token in (0, 1)]
    drawn = {uniform(*key) for key in keys}
    assert len(drawn) == len(keys)
    assert all(0 < number < 1 for number in drawn)
    (noise,) = gumbel_noise(1, 2, [3])
    assert math.exp(-math.exp(-noise)) == pytest.approx(uniform(1, 2, 3))


def test_without_rules_the_needed_change_is_the_gap():
    logits = torch.tensor([0.0, 3.0, 2.5, -4.0])
    sampler = ReferenceSampler(ChoiceRules(1))
    gaps = [needed_change(sampler, logits, (0,), token) for token in range(4)]
    assert gaps == [3.0, 0.0, 0.5, 7.0]


def test_what_no_logits_can_make_right_needs_an_infinite_change():
    sampler = ReferenceSampler(ChoiceRules(1, banned_token_ids=(2,)))
    assert needed_change(sampler, torch.tensor([0.0, 1.0, 2.0]), (0,), 2) == float("inf")


@pytest.mark.parametrize(
    "rules",
    [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}, {"typical_p": 0.2}],
    ids=lambda rules: next(iter(rules)),
)
def test_a_token_at_the_border_of_a_cut_needs_little(rules):
    """Two tokens change places at the border by rounding; their noise may be far apart."""
    law = torch.tensor([0.4, 0.2 + 1e-9, 0.2 - 1e-9, 0.15, 0.05], dtype=torch.float64).log()
    for seed in range(40):
        sampler = ReferenceSampler(ChoiceRules(1, temperature=1.0, seed=seed, **rules))
        other = law.clone()
        other[1] -= 3e-8
        before, after = (sampler.choose(logits, (0,)) for logits in (law, other))
        if before != after:
            assert after is not None
            assert needed_change(sampler, law, (0,), after) < 1e-6
            return
    pytest.fail("no seed makes the border matter")


def test_a_draw_is_named_with_its_lead(loaded):
    rules = ChoiceRules(len(PROMPT), temperature=1.0, top_p=0.9, seed=11)
    tokens = (*PROMPT, *generate_plain(loaded, PROMPT, 5, (), rules))
    for position in range(len(PROMPT), len(tokens)):
        top = top2_margin(loaded, tokens, position, rules)
        assert top.first_id == tokens[position] != top.second_id
        assert top.margin > 0
