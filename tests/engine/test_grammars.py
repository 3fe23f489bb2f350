"""Grammars over a model's tokens: what is allowed after which tokens, in whatever order asked."""

from __future__ import annotations

import json
import random
import sys
import threading

import numpy as np
import pytest

from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.core.models import TokenizerAssets
from exspec.engine.grammars import GrammarCompiler, GrammarMatcher, Vocabulary
from exspec.structured import compiling
from tests.engine.grammar_oracle import (
    NUM_TOKENS,
    OTHER_STOP,
    SPECIAL,
    STOP,
    VOCAB_SIZE,
    FiniteLanguage,
    allowed,
    assets,
    facts,
    mixed_tokenizer,
    token_bytes,
)
from tests.engine.tiny import tiny_tokenizer

TEXTS = ("abc", "abcabc", "ca", "b", "a00bc", "née", "")
LANGUAGES = {
    "regex": (Grammar(GrammarKind.REGEX, "abc|abcabc|ca|b|a00bc|née|"), TEXTS),
    "lark": (
        Grammar(GrammarKind.LARK, 'start: x | x x | "ca" | "b" | "a" "00bc" | "née" |\nx: "abc"'),
        TEXTS,
    ),
    "json": (
        # White space between the parts would make the language infinite.
        Grammar(
            GrammarKind.JSON_SCHEMA,
            json.dumps(
                {
                    "enum": ["ab", "abc", True, 1, {"a": 0}],
                    "x-guidance": {"whitespace_flexible": False},
                }
            ),
        ),
        ('"ab"', '"abc"', "true", "1", '{"a":0}'),
    ),
}
COMPILER = GrammarCompiler(assets(), facts())


@pytest.fixture(params=LANGUAGES)
def language(request):
    grammar, texts = LANGUAGES[request.param]
    return grammar, FiniteLanguage(texts)


def draw_tokens(draw: random.Random, right: FiniteLanguage, number: int, share_wrong: float):
    """Tokens of a text of the language, with wrong ones among them."""
    tokens = []
    for _ in range(number):
        after = sorted(right.allowed_after(tokens) or range(VOCAB_SIZE))
        is_wrong = draw.random() < share_wrong
        tokens.append(draw.randrange(VOCAB_SIZE) if is_wrong else draw.choice(after))
    return tokens


def test_masks_are_right_at_every_place_in_whatever_order_they_are_asked_for(language):
    grammar, right = language
    draw = random.Random(1)
    one_matcher = COMPILER.open(grammar)
    for _ in range(300):
        generated = draw_tokens(draw, right, draw.randint(0, 5), 0.05)
        drafts = draw_tokens(draw, right, 5, 0.2)[: draw.randint(0, 5)]
        if draw.random() < 0.8:  # what a draft model does: it goes on from where the text is
            drafts = draw_tokens(draw, right, len(generated) + len(drafts), 0.1)
            generated, drafts = drafts[: len(generated)], drafts[len(generated) :]
        found = one_matcher.masks(tuple(generated), tuple(drafts))
        assert found.dtype == np.int32
        assert found.shape[1] == -(-VOCAB_SIZE // 32)
        right.check_masks([allowed(mask) for mask in found], generated, drafts)
        assert bool(one_matcher.problem) == (len(found) == 0)


def test_a_matcher_that_was_elsewhere_is_like_a_new_one(language):
    """A row that moves between workers, loses its drafts, or is rebuilt from the log."""
    grammar, right = language
    draw = random.Random(2)
    moved = COMPILER.open(grammar)
    for _ in range(40):
        tokens = draw_tokens(draw, right, 8, 0.0)
        cut = draw.randint(0, 8)
        moved.masks(tokens[: draw.randint(0, cut)], draw_tokens(draw, right, 4, 0.5))
        found = moved.masks(tokens[:cut], tokens[cut:])
        assert np.array_equal(found, COMPILER.open(grammar).masks(tokens[:cut], tokens[cut:]))


def test_sequences_of_one_grammar_do_not_disturb_each_other():
    grammar, texts = LANGUAGES["regex"]
    right = FiniteLanguage(texts)
    logs = [draw_tokens(random.Random(seed), right, 4, 0.0) for seed in range(4)]
    matchers = [COMPILER.open(grammar) for _ in logs]
    for length in range(4):
        for log, matcher in zip(logs, matchers, strict=True):
            (mask,) = matcher.masks(log[:length], ())
            right.check_masks([allowed(mask)], log[:length], ())


def test_only_a_text_that_may_end_is_followed_by_stop_tokens():
    matcher = COMPILER.open(Grammar(GrammarKind.REGEX, "ab?"))
    by_text = {text: token for token, text in token_bytes().items()}
    a, b = by_text[b"a"], by_text[b"b"]
    found = matcher.masks((), (a, b, STOP, OTHER_STOP, a, a))
    stops = {STOP, OTHER_STOP}
    assert [allowed(mask) for mask in found] == [{a, by_text[b"ab"]}, {b} | stops, *[stops] * 3]
    assert [allowed(mask) for mask in matcher.masks((a, OTHER_STOP), (STOP,))] == [stops] * 2
    assert not len(matcher.masks((STOP,), ()))
    assert "end" in matcher.problem
    assert not len(matcher.masks((a, STOP, a), ()))


def test_a_stop_token_that_is_also_text_only_stops():
    by_text = {text: token for token, text in token_bytes().items()}
    b = by_text[b"b"]
    compiler = GrammarCompiler(assets(), facts(stop_token_ids=(b,)))
    texts = ("abc", "aca", "bca", "ab")
    right = FiniteLanguage(texts, stops=(b,))
    matcher = compiler.open(Grammar(GrammarKind.REGEX, "|".join(texts)))
    a, c, ab = by_text[b"a"], by_text[b"c"], by_text[b"ab"]
    for drafts in ((b,), (a, b), (a, c, a, b, b), (ab, b, b), (by_text[b"bc"], a), (ab, c, b)):
        right.check_masks([allowed(mask) for mask in matcher.masks((), drafts)], (), drafts)


@pytest.mark.parametrize("vocab_size", [NUM_TOKENS, NUM_TOKENS + 1, 320, 97, 64])
def test_heads_larger_and_smaller_than_the_tokenizer(vocab_size):
    compiler = GrammarCompiler(assets(), facts(vocab_size=vocab_size))
    matcher = compiler.open(Grammar(GrammarKind.REGEX, "(?s:.*)"))
    (mask,) = matcher.masks((), ())
    assert mask.shape == (-(-vocab_size // 32),)
    assert {STOP, OTHER_STOP} < allowed(mask) < set(range(min(vocab_size, NUM_TOKENS)))
    assert SPECIAL not in allowed(mask)
    for unknown in (vocab_size, NUM_TOKENS, 10**9, -1, SPECIAL):
        assert len(matcher.masks((), (unknown, 5))) == 1
        assert not len(matcher.masks((unknown,), ()))
        assert str(unknown) in matcher.problem


def test_generated_tokens_that_break_the_grammar_are_named_and_the_matcher_lives():
    grammar, texts = LANGUAGES["regex"]
    right = FiniteLanguage(texts)
    by_text = {text: token for token, text in token_bytes().items()}
    matcher = COMPILER.open(grammar)
    broken = (by_text[b"ca"], by_text[b"ca"])
    assert matcher.masks(broken, (3, 4)).shape == (0, -(-VOCAB_SIZE // 32))
    assert f"token {broken[1]} at index 1" in matcher.problem
    right.check_masks([allowed(mask) for mask in matcher.masks(broken[:1], ())], broken[:1], ())
    assert matcher.problem == ""


class _Tired:
    """llguidance that gives up after so many masks, as it does at its bounds of work."""

    def __init__(self, matcher, num_masks):
        self._matcher, self._num_masks, self._left = matcher, num_masks, num_masks

    def deep_copy(self):
        return _Tired(self._matcher.deep_copy(), self._num_masks)

    def unsafe_compute_mask_ptr(self, *place):
        self._left -= 1
        self._matcher.unsafe_compute_mask_ptr(*place)

    def is_error(self):
        return self._left < 0

    def get_error(self):
        return "too many states" if self.is_error() else ""

    def rollback(self, number):
        return not self.is_error() and self._matcher.rollback(number)

    def try_consume_tokens(self, tokens):
        return 0 if self.is_error() else self._matcher.try_consume_tokens(tokens)

    def __getattr__(self, name):
        return getattr(self._matcher, name)


def test_a_matcher_that_gave_up_begins_anew_at_the_same_place():
    grammar, texts = LANGUAGES["regex"]
    right = FiniteLanguage(texts)
    vocabulary = Vocabulary(VOCAB_SIZE, NUM_TOKENS, (STOP, OTHER_STOP))
    tired = GrammarMatcher(_Tired(COMPILER.open(grammar)._compiled, 2), vocabulary)
    draw = random.Random(3)
    for _ in range(20):
        tokens = draw_tokens(draw, right, 6, 0.1)
        found = tired.masks(tokens[:2], tokens[2:])
        right.check_masks([allowed(mask) for mask in found], tokens[:2], tokens[2:])
    exhausted = GrammarMatcher(_Tired(COMPILER.open(grammar)._compiled, 0), vocabulary)
    assert not len(exhausted.masks((), ()))
    assert exhausted.problem == "the grammar cannot be followed further: too many states"


def test_grammars_are_compiled_once(monkeypatch):
    compiler = GrammarCompiler(assets(), facts())
    compiler.prepare()
    opened = [compiler.open(Grammar(GrammarKind.REGEX, "a")) for _ in range(3)]
    assert len({id(matcher._compiled) for matcher in opened}) == 1
    monkeypatch.setattr("exspec.engine.grammars._NUM_COMPILED", 2)
    for text in ("b", "c"):
        compiler.open(Grammar(GrammarKind.REGEX, text))
    again = compiler.open(Grammar(GrammarKind.REGEX, "a"))
    assert again._compiled is not opened[0]._compiled


REFUSED = {
    "no tokenizer": (TokenizerAssets(""), facts(), "tokenizer"),
    "no stop token": (assets(), facts(stop_token_ids=()), "stop token"),
    "a stop token the tokenizer has not": (
        assets(), facts(stop_token_ids=(VOCAB_SIZE - 1,)), "stop token",
    ),
    "words": (TokenizerAssets(tiny_tokenizer("words", 97).to_str()), facts(), "tokenizer of mixed"),
    "no JSON": (TokenizerAssets("{"), facts(), "tokenizer of mixed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_models_without_what_it_takes_refuse_grammars(case):
    tokenizer, model, reason = REFUSED[case]
    compiler = GrammarCompiler(tokenizer, model)
    compiler.prepare()
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        compiler.open(Grammar(GrammarKind.REGEX, "a"))
    assert caught.value.field == "structured"


def test_a_worker_without_llguidance_names_the_extra(monkeypatch):
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    compiler = GrammarCompiler(assets(), facts())
    compiler.prepare()
    with pytest.raises(InvalidRequestError, match=r"exspec\[structured\]"):
        compiler.open(Grammar(GrammarKind.REGEX, "a"))


def test_llguidance_is_imported_with_the_first_tokenizer_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler(TokenizerAssets(""), facts())
    compiler.prepare()


def deep_chain() -> str:
    """Nothing but nesting, as deep as a grammar may be long."""
    rules = ["start: a0"]
    while sum(map(len, rules)) + len(rules) < 60_000:
        rules.append(f"a{len(rules) - 1}: a{len(rules)}")
    return "\n".join([*rules, f'a{len(rules) - 1}: "x"'])


def test_the_deepest_grammar_is_compiled_and_used_on_a_small_stack():
    texts = []

    def follow():
        matcher = COMPILER.open(Grammar(GrammarKind.LARK, deep_chain()))
        (mask,) = matcher.masks((), ())
        texts.extend(token_bytes()[token] for token in allowed(mask))

    former = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=follow)
        thread.start()
    finally:
        threading.stack_size(former)
    thread.join()
    assert texts == [b"x"]


def test_the_mixed_tokenizer_is_what_the_right_answers_take_it_for():
    tokenizer = mixed_tokenizer()
    assert tokenizer.get_vocab_size() == NUM_TOKENS
    for token, text in token_bytes().items():
        if text.isascii():
            assert tokenizer.decode([token]) == text.decode()
