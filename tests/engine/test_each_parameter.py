"""One parameter at a time, so that a failure names it: tokens are those of plain decoding."""

from __future__ import annotations

import functools

import pytest

from exspec.core.choosing import ChoiceRules
from exspec.engine.model_runner import ModelRunner
from exspec.engine.reference import decode_plain, sampler_of
from tests.engine.conftest import loaded_family, make_prompts, reference_of
from tests.engine.policy_courses import assert_same
from tests.engine.rounds import Limits, speculate

FAMILY = "llama-gqa"
MAX_TOKENS = 14
NUM_DRAFTS = 3
PROMPTS = make_prompts(4, seed=31)
GREEDY = [reference_of(FAMILY, prompt, MAX_TOKENS) for prompt in PROMPTS]
LIKELY = tuple(sorted({token for tokens in GREEDY for token in tokens}))
DRAWN = {"temperature": 1.5, "seed": 77}

PARAMETERS = {
    "temperature": {"temperature": 0.8, "seed": 77},
    "seed": {"temperature": 1.5, "seed": 78},
    "top_k": {**DRAWN, "top_k": 2},
    "top_p": {**DRAWN, "top_p": 0.5},
    "min_p": {**DRAWN, "min_p": 0.4},
    "typical_p": {**DRAWN, "typical_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 2.5},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "logit_bias": {"logit_bias": tuple((token, -3.0) for token in LIKELY[::3])},
    "min_tokens": {"min_tokens": 7, "ending_token_ids": LIKELY},
    "bad_words": {"bad_words": tuple(tokens[i : i + 3] for tokens in GREEDY for i in (1, 5, 9))},
    "banned_token_ids": {"banned_token_ids": LIKELY[::2]},
    "allowed_token_ids": {"allowed_token_ids": LIKELY[::2]},
}
ALONE = {name: {k: v for k, v in DRAWN.items() if k in own} for name, own in PARAMETERS.items()}
"""The same request without the parameter."""


def every_third_wrong(truths):
    def propose(request, new, k):
        truth = truths[request][len(new) : len(new) + k]
        return [t if (len(new) + i) % 3 else (t + 1) % 97 for i, t in enumerate(truth)]

    return propose


@functools.cache
def plain_run(prompt, rules):
    loaded = loaded_family(FAMILY)
    return decode_plain(loaded, prompt, MAX_TOKENS, (), sampler_of(loaded, len(prompt), rules))


def plain_runs(rules):
    return [plain_run(prompt, own) for prompt, own in zip(PROMPTS, rules, strict=True)]


def rules_of(options) -> list[ChoiceRules | None]:
    """Three rows have the parameter, among them one that does not."""
    rules = [ChoiceRules(len(prompt), num_logprobs=2, **options) for prompt in PROMPTS]
    return [*rules[:2], None, *rules[3:]]


@pytest.mark.parametrize("name", PARAMETERS)
def test_speculation_gives_what_plain_decoding_gives(name, layout):
    loaded = loaded_family(FAMILY)
    rules = rules_of(PARAMETERS[name])
    runs = plain_runs(rules)
    runner = ModelRunner(loaded, layout=layout, num_slots=len(PROMPTS), capacity=64)
    propose = every_third_wrong([run.tokens for run in runs])
    done = speculate(runner, PROMPTS, propose, NUM_DRAFTS, Limits(MAX_TOKENS), rules)
    assert [tuple(sequence.new) for sequence in done] == [run.tokens for run in runs]
    for sequence, run in zip(done, runs, strict=True):
        assert_same(sequence.logprobs, run.logprobs)
    without = plain_runs(rules_of(ALONE[name]))
    assert [run.tokens for run in runs] != [run.tokens for run in without]
