"""From parameters to rules: what a model says for a request, and what is refused, by field."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy import VOCAB, facts
from toy_tokenizers import byte_level, metaspace

from coordinator import rules as module
from coordinator.members import ServedModel
from coordinator.rules import resolve
from coordinator.text import TextCodec
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import GenerationRequest, Resume, TokenPrompt
from exspec.core.models import GenerationDefaults, TokenizerAssets
from exspec.core.params import SamplingParams

BYTES = TextCodec(TokenizerAssets(byte_level().to_str()))
WORDS = TextCodec(TokenizerAssets(metaspace().to_str()))
NO_TEXT = TextCodec(TokenizerAssets(""))
ENDS = (3, 4)
ADVICE = GenerationDefaults(0.6, 20, 0.95, 0.05, 0.9, 1.1)


def _model(codec=BYTES, **changes) -> ServedModel:
    return ServedModel(facts(**({"vocab_size": 300, "stop_token_ids": ENDS} | changes)), codec)


def _resolved(model=None, resume=None, **sampling):
    request = GenerationRequest(TokenPrompt((5, 6)), SamplingParams(**sampling), resume=resume)
    return resolve(request, model or _model(), 2)


def test_a_request_that_asks_for_nothing_has_no_rules():
    assert _resolved().rules is None
    assert _resolved().stop_token_ids == set(ENDS)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0, "top_k": 5, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5, "seed": 9},
        {"top_k": -1, "ignore_eos": True},
        {"logit_bias": ((7, 0.0),)},
        {"stop": ("x",), "stop_token_ids": (9,), "include_stop_str_in_output": True},
    ],
)
def test_what_changes_no_choice_is_not_sent(sampling):
    assert _resolved(**sampling).rules is None


def test_every_parameter_becomes_a_rule():
    stated = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
        "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4,
        "logit_bias": ((7, 1.5),), "min_tokens": 4, "seed": 11,
    }  # fmt: skip
    resolved = _resolved(
        **stated,
        stop_token_ids=(9, 3),
        banned_token_ids=(8, 8, 6),
        bad_words_ids=((1, 2),),
        logprobs=3,
        prompt_logprobs=0,
    )
    assert resolved.rules == ChoiceRules(
        2,
        **stated,
        ending_token_ids=(3, 4, 9),
        banned_token_ids=(6, 8),
        bad_words=((1, 2),),
        num_logprobs=3,
        num_prompt_logprobs=0,
    )
    assert resolved.stop_token_ids == {3, 4, 9}


def test_allowed_tokens_are_those_that_are_not_banned_as_well():
    rules = _resolved(allowed_token_ids=(9, 7, 8), banned_token_ids=(8, 1)).rules
    assert (rules.allowed_token_ids, rules.banned_token_ids) == ((7, 9), ())


def test_what_a_request_leaves_out_the_model_says():
    rules = _resolved(_model(generation=ADVICE), seed=1).rules
    numbers = (rules.temperature, rules.top_k, rules.top_p, rules.min_p, rules.typical_p)
    assert (*numbers, rules.repetition_penalty) == (0.6, 20, 0.95, 0.05, 0.9, 1.1)


def test_what_a_request_states_the_model_does_not_overrule():
    stated = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    resolved = _resolved(_model(generation=ADVICE), **stated, seed=1)
    assert resolved.rules == ChoiceRules(2, **stated, ending_token_ids=ENDS, seed=1)
    stated["temperature"] = 0.0
    assert _resolved(_model(generation=ADVICE), **stated).rules is None


def test_tokens_that_may_not_come_early_are_all_that_end_the_text():
    assert _resolved(min_tokens=1, stop_token_ids=(9,)).rules.ending_token_ids == (3, 4, 9)
    own = _resolved(min_tokens=1, stop_token_ids=(9,), ignore_eos=True).rules
    assert own.ending_token_ids == (9,)


# Seeds


def test_a_seed_is_drawn_when_there_is_none():
    drawn = {_resolved(temperature=1.0).seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**64 for seed in drawn)
    resolved = _resolved(temperature=1.0)
    assert resolved.rules.seed == resolved.seed


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_a_seed_that_is_stated_is_used(seed):
    resolved = _resolved(temperature=1.0, seed=seed)
    assert (resolved.seed, resolved.rules.seed) == (seed, seed)


def test_what_is_resumed_goes_on_with_the_seed_it_started_with():
    begun = Resume((7,), "f", seed=5)
    assert _resolved(resume=begun, temperature=1.0).seed == 5
    assert _resolved(resume=begun, temperature=1.0, seed=6).seed == 5
    assert _resolved(resume=replace(begun, seed=None), temperature=1.0, seed=6).seed == 6


def test_drawn_tokens_are_not_resumed_without_a_seed():
    begun = Resume((7,), "f")
    for model, sampling in ((_model(), {"temperature": 1.0}), (_model(generation=ADVICE), {})):
        with pytest.raises(InvalidRequestError, match="needs the seed") as caught:
            _resolved(model, begun, **sampling)
        assert caught.value.field == "resume"
    _resolved(resume=begun)
    _resolved(resume=Resume((), "f"), temperature=1.0)


def test_the_prompts_logprobs_are_not_made_again_when_its_tokens_are_resumed():
    begun = Resume((7,), "f")
    assert _resolved(resume=begun, prompt_logprobs=1).rules is None
    rules = _resolved(resume=replace(begun, token_ids=()), prompt_logprobs=1).rules
    assert rules.num_prompt_logprobs == 1


# Words


def test_bad_words_are_banned_with_and_without_a_space_before():
    rules = _resolved(bad_words=("ab", " ab", "c"), bad_words_ids=((7,), tuple(b"ab"))).rules
    assert rules.bad_words == ((7,), tuple(b"ab"), tuple(b" ab"), tuple(b" c"), tuple(b"c"))


def test_a_bad_word_is_banned_without_the_special_tokens_of_a_prompt():
    rules = _resolved(_model(WORDS), bad_words=("AB",)).rules
    assert rules.bad_words == ((4, 6, 7),)


def test_a_bad_word_without_tokens_is_refused():
    with pytest.raises(InvalidRequestError, match="no tokens") as caught:
        _resolved(_model(_Mute()), bad_words=("x",))
    assert caught.value.field == "bad_words"


class _Mute:
    has_tokenizer = True

    def encode_piece(self, text):
        return ()


def test_bad_words_may_not_come_to_endless_tokens(monkeypatch):
    monkeypatch.setattr(module, "MAX_BAD_WORD_TOKENS", 9)
    _resolved(bad_words=("abcd",))
    with pytest.raises(InvalidRequestError, match="come to 11 token ids; at most 9"):
        _resolved(bad_words=("abcde",))


# What is refused


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"stop_token_ids": (300,)}, "stop_token_ids"),
        ({"logit_bias": ((300, 1.0),)}, "logit_bias"),
        ({"banned_token_ids": (5, 300)}, "banned_token_ids"),
        ({"allowed_token_ids": (300, 5)}, "allowed_token_ids"),
        ({"bad_words_ids": ((5,), (5, 300))}, "bad_words_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(sampling, field):
    with pytest.raises(
        InvalidRequestError, match=r"300 is outside the vocabulary; .* 299"
    ) as caught:
        _resolved(**sampling)
    assert caught.value.field == field


def test_rules_that_leave_no_token_are_refused():
    everything = tuple(range(300))
    with pytest.raises(InvalidRequestError, match="no token is left") as caught:
        _resolved(banned_token_ids=everything)
    assert caught.value.field == "banned_token_ids"
    with pytest.raises(InvalidRequestError, match="no token is left") as caught:
        _resolved(allowed_token_ids=(5, 97), bad_words=("a",), banned_token_ids=(5,))
    assert caught.value.field == "bad_words"
    _resolved(banned_token_ids=everything[1:])
    _resolved(allowed_token_ids=(5, 97), bad_words=("a",))


def test_rules_that_leave_only_tokens_that_may_not_come_yet_are_refused():
    for sampling in (
        {"allowed_token_ids": (3, 9), "stop_token_ids": (9,)},
        {"allowed_token_ids": (3, 9), "banned_token_ids": (9,)},
        {"banned_token_ids": tuple(i for i in range(300) if i not in ENDS)},
    ):
        with pytest.raises(InvalidRequestError, match=r"all tokens .* end the text") as caught:
            _resolved(**sampling, min_tokens=2)
        assert caught.value.field == "min_tokens"
        _resolved(**sampling)


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop", ("x",)), ("bad_words", ("x",)), ("structured", Grammar(GrammarKind.REGEX, "x"))],
)
def test_what_is_about_text_is_refused_where_there_is_none(field, value):
    with pytest.raises(InvalidRequestError, match="no tokenizer") as caught:
        _resolved(_model(NO_TEXT), **{field: value})
    assert caught.value.field == field


def test_logprobs_of_a_prompt_are_bounded():
    """They come in one message."""
    request = GenerationRequest(TokenPrompt((5,)), SamplingParams(prompt_logprobs=20))
    resolve(request, _model(), 49_932)
    with pytest.raises(InvalidRequestError, match="1048593 logprobs; 1048576 may be") as caught:
        resolve(request, _model(), 49_933)
    assert caught.value.field == "prompt_logprobs"


def test_a_small_vocabulary_is_no_trouble():
    assert VOCAB < 300
    _resolved(_model(NO_TEXT, vocab_size=VOCAB), allowed_token_ids=(VOCAB - 1,))


def test_structured_output_needs_something_to_end_with():
    grammar = Grammar(GrammarKind.REGEX, "a+")
    assert _resolved(structured=grammar).rules.grammar == grammar
    for own in ((), (9,)):
        with pytest.raises(InvalidRequestError, match="the model has none") as caught:
            _resolved(_model(stop_token_ids=()), structured=grammar, stop_token_ids=own)
        assert caught.value.field == "structured"
