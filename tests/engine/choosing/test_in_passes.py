"""Rules in the model runner: what is chosen does not depend on how the passes were cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from exspec.core.acceptance import accept
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.rows import RowInput
from tests.engine.conftest import loaded_family, make_prompts
from tests.engine.tiny import VOCAB_SIZE, tiny_model

NUM_NEW = 12

RULES = (
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "top_p": 0.9, "seed": 8, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_k": 9, "seed": 9, "frequency_penalty": 0.8, "presence_penalty": 0.5},
    {"temperature": 1.0, "min_p": 0.05, "typical_p": 0.8, "seed": 2**64 - 1},
    {"repetition_penalty": 2.0, "logit_bias": ((5, 4.0), (6, -90.0))},
    {"temperature": 1.0, "seed": 3, "bad_words": ((1,), (2, 3), (4, 4, 5))},
    {"temperature": 1.0, "seed": 4, "allowed_token_ids": (5, 6, 7, 8), "banned_token_ids": (7,)},
    {"temperature": 2.0, "seed": 5, "min_tokens": 6, "ending_token_ids": tuple(range(90))},
)


@dataclass
class Sequence_:  # noqa: N801 - a name of the standard library
    slot: int
    choosing: Choosing
    prompt: tuple[int, ...]
    new: list[int]
    kv: int = 0

    @property
    def log(self) -> tuple[int, ...]:
        return (*self.prompt, *self.new)


def generate(loaded, layout, prompts, rules, num_drafts: int, draw: random.Random) -> list:
    """All sequences, with drafts that are right, wrong or absent; logprobs beside the tokens."""
    runner = ModelRunner(loaded, layout=layout, num_slots=len(prompts), capacity=96)
    sequences = [
        Sequence_(i, runner.open_choosing(replace(one, num_prompt_tokens=len(prompt))), prompt, [])
        for i, (prompt, one) in enumerate(zip(prompts, rules, strict=True))
    ]
    truths = TRUTHS.get(id(loaded))
    reported = [[] for _ in sequences]
    while active := [s for s in sequences if len(s.new) < NUM_NEW]:
        draw.shuffle(active)
        active = active[: draw.randint(1, len(active))] if num_drafts else active
        rows, drafts = [], []
        for s in active:
            k = draw.randint(0, num_drafts)
            guess = truths[s.slot][len(s.new) : len(s.new) + k] if truths else []
            drafts.append(
                tuple(t if draw.random() < 0.7 else draw.randrange(VOCAB_SIZE) for t in guess)
            )
            tokens = s.log[s.kv :] + drafts[-1]
            rows.append(
                RowInput(s.slot, s.kv, tokens, len(drafts[-1]) + 1, s.choosing, s.log[: s.kv])
            )
        output = runner.forward(rows)
        assert not output.failed_rows
        assert not output.stuck_rows
        for i, (s, draft, choices) in enumerate(zip(active, drafts, output.choices, strict=True)):
            decision = accept(draft[: len(choices) - 1], choices)
            block = [*draft[: decision.num_accepted], decision.bonus_token]
            s.kv = len(s.log) + decision.num_accepted
            s.new += block
            reported[s.slot] += output.logprobs[i][: len(block)]
    if truths is None:
        TRUTHS[id(loaded)] = [s.new for s in sequences]
    return [(s.new[:NUM_NEW], reported[s.slot][:NUM_NEW]) for s in sequences]


TRUTHS: dict[int, Sequence[Sequence[int]]] = {}


def rules_of(changes: Sequence[dict]) -> list[ChoiceRules]:
    return [ChoiceRules(0, num_logprobs=3, **change) for change in changes]


def assert_same_report(reported, expected):
    """But for the rounding of passes of another size."""
    for item, other in zip(reported, expected, strict=True):
        assert item.token_id == other.token_id
        assert [t for t, _ in item.top] == [t for t, _ in other.top]
        assert item.logprob == pytest.approx(other.logprob, abs=1e-9)


@pytest.mark.parametrize("layout", list(KvLayoutName))
def test_blocks_of_any_size_give_the_tokens_of_one_by_one(layout):
    loaded = loaded_family("qwen3")
    prompts = make_prompts(len(RULES), seed=3)
    plain = generate(loaded, layout, prompts, rules_of(RULES), 0, random.Random(0))
    for seed in range(3):
        drafted = generate(loaded, layout, prompts, rules_of(RULES), 5, random.Random(seed))
        for (tokens, logprobs), (plain_tokens, plain_logprobs) in zip(drafted, plain, strict=True):
            assert tokens == plain_tokens
            assert [item.token_id for item in logprobs] == tokens
            assert_same_report(logprobs, plain_logprobs)


def test_the_rules_are_obeyed():
    loaded = loaded_family("qwen3")
    prompts = make_prompts(len(RULES), seed=3)
    found = generate(loaded, KvLayoutName.SLOTS, prompts, rules_of(RULES), 0, random.Random(0))
    assert 6 not in found[5][0]
    bad = found[6][0]
    assert 1 not in bad
    assert (2, 3) not in pairwise(bad)
    assert set(found[7][0]) <= {5, 6, 8}
    assert min(found[8][0][:6]) >= 90
    assert min(found[8][0]) < 90


def one_row(runner, rules, tokens, num_choices=1, **options):
    return RowInput(0, 0, tokens, num_choices, runner.open_choosing(rules), **options)


@pytest.fixture
def runner():
    return ModelRunner(
        loaded_family("llama-gqa"), layout=KvLayoutName.SLOTS, num_slots=2, capacity=64
    )


def test_a_row_without_rules_beside_one_with_rules_is_greedy(runner):
    greedy = runner.forward([RowInput(1, 0, (3, 4, 5, 6), 2)]).choices[0]
    row = one_row(runner, ChoiceRules(2, temperature=1.0, seed=1), (8, 9))
    output = runner.forward([row, RowInput(1, 0, (3, 4, 5, 6), 2)])
    assert output.choices[1] == greedy
    assert output.logprobs == ((), ())


def test_a_row_whose_rules_leave_nothing_is_stuck_and_the_others_go_on(runner):
    everything = tuple(range(VOCAB_SIZE))
    rules = ChoiceRules(1, ending_token_ids=everything, min_tokens=1, temperature=1.0)
    output = runner.forward([one_row(runner, rules, (3,)), RowInput(1, 0, (4,), 1)])
    assert output.stuck_rows == {0}
    assert output.choices[0] == ()
    assert len(output.choices[1]) == 1
    assert not output.failed_rows
    rest = runner.forward([RowInput(0, 1, (5,), 1)])
    assert not rest.stuck_rows


def test_choices_end_where_the_rules_leave_nothing(runner):
    rest = tuple((9, token) for token in range(VOCAB_SIZE))
    rules = ChoiceRules(1, bad_words=rest, temperature=1.0)
    output = runner.forward([one_row(runner, rules, (3, 4, 9, 5), 4)])
    assert len(output.choices[0]) == 2
    assert not output.stuck_rows


@pytest.mark.parametrize("layout", list(KvLayoutName))
def test_where_numbers_are_not_finite_the_row_is_fed_anew_with_its_rules(layout):
    poison = 50
    model = tiny_model("llama-gqa")
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    loaded = wrap_model(model, ModelSettings("poisoned"))
    rules = ChoiceRules(
        2, temperature=1.0, seed=5, repetition_penalty=1.5, num_logprobs=1, num_prompt_logprobs=1
    )

    def run(tokens, num_choices, scored=()):
        runner = ModelRunner(loaded, layout=layout, num_slots=1, capacity=32)
        runner.forward([RowInput(0, 0, (7, 8), 0)])
        choosing = runner.open_choosing(rules)
        row = RowInput(0, 2, tokens, num_choices, choosing, (7, 8), scored)
        return runner.forward([row])

    clean = run((3, 4, 5), 3, (4, 5))
    output = run((3, 4, 5, poison, 6), 5, (4, 5))
    assert output.choices == clean.choices
    assert_same_report(output.logprobs[0], clean.logprobs[0])
    assert_same_report(output.scored[0], clean.scored[0])
    failed = run((poison, 3), 1, (3, 4))
    assert failed.failed_rows == {0}
    assert failed.scored == ((),)
    assert not failed.stuck_rows


def test_scored_tokens_get_their_logprobs_whatever_the_chunks(runner):
    prompt = (3, 4, 5, 6, 7, 8)
    choosing = runner.open_choosing(ChoiceRules(6, num_prompt_logprobs=2))
    whole = runner.forward(
        [RowInput(0, 0, prompt, 1, choosing, scored=prompt[1:]), RowInput(1, 0, (5,), 1)]
    )
    runner.release(0)
    first = runner.forward([RowInput(0, 0, prompt[:4], 0, choosing, scored=prompt[1:5])])
    second = runner.forward([RowInput(0, 4, prompt[4:], 1, choosing, scored=prompt[5:])])
    items = first.scored[0] + second.scored[0]
    assert [item.token_id for item in items] == list(prompt[1:])
    assert [len(item.top) for item in items] == [2] * 5
    assert_same_report(items, whole.scored[0])
    assert whole.scored[1] == ()
    assert whole.choices[0] == second.choices[0]


def test_a_draft_vocabulary_draws_with_the_noise_of_the_real_ids():
    """Of the tokens it has, the one the whole head would draw if others were banned."""
    loaded, ids = loaded_family("llama-gqa"), range(0, VOCAB_SIZE, 3)
    options = {"layout": KvLayoutName.SLOTS, "num_slots": 2, "capacity": 32}
    cut = ModelRunner(loaded, choices_among=ids, **options)
    full = ModelRunner(loaded, **options)
    rules = ChoiceRules(3, temperature=1.0, top_p=0.9, seed=11)
    tokens = (3, 4, 5, 6, 7, 8)
    expected = full.forward(
        [one_row(full, replace(rules, allowed_token_ids=tuple(ids)), tokens, 4)]
    )
    greedy = RowInput(1, 0, tokens, 4)
    output = cut.forward([one_row(cut, rules, tokens, 4), greedy])
    assert output.choices[0] == expected.choices[0]
    assert output.choices[1] == cut.forward([replace(greedy, slot=0)]).choices[0]


class OddTokens:
    """A grammar of odd token ids."""

    def masks(self, generated, drafts):
        num_valid = next((i for i, token in enumerate(drafts) if token % 2 == 0), len(drafts))
        return np.full((num_valid + 1, -(-VOCAB_SIZE // 32)), 0xAAAAAAAA, np.uint32).view(np.int32)


def test_a_grammar_masks_each_place_and_ends_with_an_invalid_draft():
    grammar = Grammar(GrammarKind.REGEX, "odd")
    rules = ChoiceRules(2, grammar=grammar, temperature=1.0)
    options = {"layout": KvLayoutName.SLOTS, "num_slots": 1, "capacity": 32}
    loaded = loaded_family("llama-gqa")
    opened = []
    runner = ModelRunner(loaded, open_matcher=lambda g: opened.append(g) or OddTokens(), **options)
    output = runner.forward([one_row(runner, rules, (2, 3, 5, 7, 8, 9), 5)])
    assert opened == [grammar]
    assert len(output.choices[0]) == 4 - 1
    assert all(token % 2 for token in output.choices[0])
    with pytest.raises(InvalidRequestError, match="structured"):
        ModelRunner(loaded, **options).open_choosing(rules)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("logit_bias", {"logit_bias": ((97, 1.0),)}),
        ("banned_token_ids", {"banned_token_ids": (-1,)}),
        ("allowed_token_ids", {"allowed_token_ids": (200,)}),
        ("bad_words_ids", {"bad_words": ((5, 97),)}),
        ("stop_token_ids", {"ending_token_ids": (97,), "min_tokens": 1}),
        ("banned_token_ids", {"banned_token_ids": tuple(range(97))}),
        ("allowed_token_ids", {"allowed_token_ids": (1,), "banned_token_ids": (1,)}),
    ],
)
def test_rules_that_cannot_be_followed_name_their_field(runner, field, change):
    with pytest.raises(InvalidRequestError) as caught:
        runner.open_choosing(ChoiceRules(1, **change))
    assert caught.value.field == field


def test_a_row_that_contradicts_its_rules_is_refused(runner):
    choosing = runner.open_choosing(ChoiceRules(1, repetition_penalty=2.0))
    runner.forward([RowInput(0, 0, (1, 2, 3), 0)])
    for row, field in (
        (RowInput(0, 3, (4,), 1, choosing, (1, 2)), "history"),
        (RowInput(0, 3, (4,), 1, choosing, (1, 2, 3), scored=(1, 2)), "scored"),
        (RowInput(0, 3, (4,), 1, choosing, (1, 2, 3), scored=(97,)), "scored"),
        (RowInput(0, 3, (4,), 1, Choosing(choosing.rules, 10), (1, 2, 3)), "choosing"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            runner.forward([row])
        assert caught.value.field == field
