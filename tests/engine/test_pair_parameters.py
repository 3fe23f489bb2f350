"""One parameter at a time on the default pair's target in float32: drafts change nothing but what
rounding of logits can change, and that is weighed in float64.
"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from exspec.audit.compare import compare
from exspec.audit.equality import Question
from exspec.audit.reference_cache import ReferenceCache
from exspec.audit.reference_runs import ReferenceDecoder
from exspec.core.choosing import ChoiceRules
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.reference import generate_plain
from tests.engine.rounds import Limits, speculate
from tests.engine.test_each_parameter import every_third_wrong

pytestmark = pytest.mark.pair
SETTINGS = ModelSettings("smollm2-135m-instruct", max_model_len=256)
PROMPT = "<|im_start|>user\nTell me about cats.<|im_end|>\n<|im_start|>assistant\n"
LIMITS = Limits(16)
DRAWN = {"temperature": 1.0, "seed": 5}
PARAMETERS = {
    "temperature": lambda near: {"temperature": 0.7, "seed": 5},
    "top_k": lambda near: {**DRAWN, "top_k": 40},
    "top_p": lambda near: {**DRAWN, "top_p": 0.9},
    "min_p": lambda near: {**DRAWN, "min_p": 0.05},
    "typical_p": lambda near: {**DRAWN, "typical_p": 0.9},
    "repetition_penalty": lambda near: {"repetition_penalty": 1.3},
    "presence_penalty": lambda near: {"presence_penalty": 1.5},
    "frequency_penalty": lambda near: {"frequency_penalty": 1.0},
    "logit_bias": lambda near: {"logit_bias": tuple((token, -5.0) for token in near)},
    "min_tokens": lambda near: {"min_tokens": 8, "ending_token_ids": near},
    "bad_words": lambda near: {"bad_words": (near[:1], near[2:4], near[4:7])},
    "banned_token_ids": lambda near: {"banned_token_ids": near},
    "allowed_token_ids": lambda near: {"allowed_token_ids": (*near, *range(1000, 2000))},
}


@pytest.fixture(scope="module")
def target():
    return load_model(SETTINGS)


@pytest.fixture(scope="module")
def question(target):
    return tuple(Tokenizer.from_str(target.tokenizer.tokenizer_json).encode(PROMPT).ids)


@pytest.fixture(scope="module")
def rules(target, question):
    near = tuple(dict.fromkeys(generate_plain(target, question, 8, ())))
    return [ChoiceRules(len(question), **make(near)) for make in PARAMETERS.values()]


def generated(target, question, rules, propose, num_drafts):
    """All rows as one batch, each by its own rules."""
    runner = ModelRunner(
        target, layout=KvLayoutName.SLOTS, num_slots=len(rules), capacity=len(question) + 24
    )
    done = speculate(runner, [question] * len(rules), propose, num_drafts, LIMITS, rules)
    return [tuple(sequence.new) for sequence in done]


@pytest.fixture(scope="module")
def plain(target, question, rules):
    return generated(target, question, rules, lambda *_: (), 0)


@pytest.fixture(scope="module")
def speculative(target, question, rules, plain):
    return generated(target, question, rules, every_third_wrong(plain), 3)


@pytest.mark.parametrize("name", PARAMETERS)
def test_drafts_change_nothing(name, question, rules, plain, speculative):
    index = list(PARAMETERS).index(name)
    found = compare(plain[index], speculative[index], ())
    if found.difference is not None:
        judge = ReferenceDecoder(SETTINGS, "float32", ReferenceCache())
        asked = Question(name, "", question, rules[index])
        common = plain[index][: found.difference.position]
        assert judge.weigh(asked, common, found.difference).is_tie
