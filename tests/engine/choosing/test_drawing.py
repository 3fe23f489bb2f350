"""The fast way draws what the definition draws, and a row's choice is its own."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exspec.core.choosing import ChoiceRules
from exspec.engine.choosing import candidates, challengers
from exspec.engine.choosing.candidates import draw
from exspec.engine.choosing.choose import choose
from exspec.engine.choosing.choosing import Asked, Choosing
from exspec.engine.choosing.drawing import draw_from_all, draws_of
from exspec.engine.choosing.noise import counters, key_of, lowest_hash_of, reference_gumbel
from exspec.engine.rows import NOT_FINITE, STUCK

NUM_ROWS = 6
VOCAB_SIZES = (600, 3001, 9000)
"""Few blocks, columns beyond the last whole block, and many blocks."""


def make_logits(kind: str, vocab_size: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    draw_ = random.Random(seed)
    raw = torch.randn(NUM_ROWS, vocab_size) * draw_.choice([0.1, 1, 3, 6])
    best = draw_.choice([vocab_size - 1, draw_.randrange(vocab_size)])
    raw[:, best] += 30 if kind == "peaked" else 0
    return CHANGES.get(kind, torch.clone)(raw)


CHANGES = {
    "flat": torch.zeros_like,
    "ties": lambda raw: (raw * 2).round() / 2,
    "neighbours": lambda raw: raw.sort(dim=1, descending=True).values,
    "mostly banned": lambda raw: raw.masked_fill(torch.rand_like(raw) < 0.995, float("-inf")),
    "bfloat16": torch.Tensor.bfloat16,
    "float64": torch.Tensor.double,
}
KINDS = ("plain", "peaked", *CHANGES)


def draw_rules(draw_: random.Random) -> ChoiceRules:
    return ChoiceRules(
        0,
        temperature=draw_.choice([0.001, 0.5, 1.0, 1.0, 2.0, 100.0]),
        top_k=draw_.choice([0, 0, 0, 1, 50, 128, 129, 500, 10**6]),
        top_p=draw_.choice([1.0, 1.0, 0.95, 0.5, 0.9999]),
        min_p=draw_.choice([0.0, 0.0, 0.1, 1e-4, 1e-12, 1.0]),
        typical_p=draw_.choice([1.0, 1.0, 1.0, 0.9, 0.3]),
        seed=draw_.getrandbits(64),
    )


def asked(rules: ChoiceRules, position: int, vocab_size: int, num_drafts: int = 0) -> Asked:
    return Asked(Choosing(rules, vocab_size), position, (), (0,) * num_drafts)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(VOCAB_SIZES))
def test_the_fast_way_draws_what_the_definition_draws(kind, seed, vocab_size):
    raw, draw_ = make_logits(kind, vocab_size, seed), random.Random(seed)
    rows = [asked(draw_rules(draw_), draw_.randrange(1000), vocab_size) for _ in raw]
    draws = draws_of(rows, raw)
    chosen, best = draw(raw, draws)
    assert torch.equal(chosen, draw_from_all(raw, draws))
    assert torch.equal(best.double(), raw.amax(dim=1).double())


def test_both_ways_to_look_through_hashes_find_the_same():
    keys = torch.tensor([[key_of(seed, 9)] for seed in range(70)])
    own = counters(torch.arange(700))
    lowest = lowest_hash_of(torch.linspace(-1, 8, 70, dtype=torch.float64)[:, None])
    found = challengers._high_one_by_one(keys, own, lowest)
    assert len(found[0]) > 1000
    for one, other in zip(found, challengers._high_together(keys, own, lowest), strict=True):
        assert torch.equal(one, other)


def test_all_ways_to_a_choice_are_taken(monkeypatch):
    """By the candidates alone, by hashes of all others, and by the whole vocabulary."""
    ways = Counter()
    look, whole = candidates._look_at, candidates.draw_from_all

    def counted_look(*arguments):
        found = look(*arguments)
        ways.update(certain=int(found.is_certain.sum()), open=int(found.is_open.sum()))
        return found

    def counted_whole(*arguments):
        ways.update(whole=1)
        return whole(*arguments)

    monkeypatch.setattr(candidates, "_look_at", counted_look)
    monkeypatch.setattr(candidates, "draw_from_all", counted_whole)
    torch.manual_seed(1)
    raw = torch.randn(NUM_ROWS, 9000) * 2
    rows = [
        asked(ChoiceRules(0, temperature=1.0, seed=1), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, top_p=0.95, seed=2), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, top_k=50, seed=3), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, min_p=0.2, seed=4), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, typical_p=0.9, seed=5), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, top_k=5000, seed=6), 5, 9000),
    ]
    draws = draws_of(rows, raw)
    assert torch.equal(draw(raw, draws)[0], draw_from_all(raw, draws))
    assert (ways["certain"], ways["open"]) == (2, 2)
    assert ways["whole"] == 2


def mixed_rows(vocab_size: int) -> list[Asked]:
    """Every row other rules; blocks of one to four choices."""
    draw_ = random.Random(7)
    tokens = tuple(draw_.randrange(vocab_size) for _ in range(9))
    rules = [
        ChoiceRules(4, temperature=1.0, top_p=0.95, seed=1),
        ChoiceRules(4),
        ChoiceRules(4, temperature=1.0, seed=2),
        ChoiceRules(4, temperature=0.7, top_k=40, repetition_penalty=1.2, seed=3),
        ChoiceRules(4, logit_bias=((5, 40.0),), frequency_penalty=9.0),
        ChoiceRules(4, temperature=1.3, min_p=0.02, typical_p=0.7, seed=4),
        ChoiceRules(4, temperature=1.0, allowed_token_ids=(1, 2, 3), seed=5),
    ]
    return [
        Asked(Choosing(one, vocab_size), 9, tokens, tokens[: index % 4])
        for index, one in enumerate(rules)
    ]


@pytest.mark.parametrize("vocab_size", [97, 9000])
def test_a_choice_does_not_depend_on_company_order_or_block(vocab_size):
    rows = mixed_rows(vocab_size)
    torch.manual_seed(3)
    blocks = [torch.randn(one.num_places, vocab_size) * 3 for one in rows]
    alone = [choose(block, [one]).tolist() for block, one in zip(blocks, rows, strict=True)]
    draw_ = random.Random(1)
    for _ in range(6):
        some = draw_.sample(range(len(rows)), draw_.randint(2, len(rows)))
        together = choose(torch.cat([blocks[i] for i in some]), [rows[i] for i in some])
        assert together.tolist() == [token for i in some for token in alone[i]]
    for block, one, expected in zip(blocks, rows, alone, strict=True):
        for place in range(one.num_places):
            single = Asked(
                one.choosing, one.first_position + place, (*one.tokens, *one.drafts[:place]), ()
            )
            assert (
                choose(block[place : place + 1], [single]).tolist() == expected[place : place + 1]
            )


def test_the_choice_is_the_largest_sum_of_logit_and_noise():
    raw = make_logits("float64", 600, 4)
    rows = [asked(ChoiceRules(0, temperature=1.0, seed=i), 3, 600) for i in range(NUM_ROWS)]
    for row, (token, logits) in enumerate(
        zip(choose(raw, rows).tolist(), raw.tolist(), strict=True)
    ):
        sums = [logit + reference_gumbel(row, 3, t) for t, logit in enumerate(logits)]
        assert token == max(range(600), key=sums.__getitem__)


def test_equal_sums_go_to_the_lowest_id():
    rules = ChoiceRules(0, logit_bias=((30, 5.0), (20, 5.0)))
    assert choose(torch.zeros(1, 97), [asked(rules, 4, 97)]).tolist() == [20]


@pytest.mark.parametrize("vocab_size", [97, 9000])
@pytest.mark.parametrize(
    "rules",
    [
        ChoiceRules(0, temperature=1.0, top_p=0.9),
        ChoiceRules(0, temperature=1.0, logit_bias=((3, 1.0),)),
        ChoiceRules(0, repetition_penalty=1.5),
        ChoiceRules(0, num_logprobs=1),
    ],
    ids=["draw", "changed", "penalized", "greedy"],
)
def test_what_is_not_finite_is_marked_and_no_other_row_changes(rules, vocab_size):
    torch.manual_seed(5)
    raw = torch.randn(5, vocab_size)
    rows = [asked(rules, 3, vocab_size) for _ in raw]
    expected = choose(raw, rows).tolist()
    raw[0, 7], raw[1, 8], raw[2] = float("nan"), float("inf"), float("-inf")
    raw[3, :50] = raw[3, :50].masked_fill(raw[3, :50] < raw[3].amax(), float("-inf"))
    chosen = choose(raw, rows).tolist()
    assert chosen[:3] == [NOT_FINITE] * 3
    assert chosen[3] >= 0
    assert chosen[4] == expected[4]


@pytest.mark.parametrize("vocab_size", [97, 9000])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_rules_leave_nothing_a_row_is_stuck(vocab_size, temperature):
    rules = ChoiceRules(
        0,
        temperature=temperature,
        min_tokens=9,
        ending_token_ids=tuple(range(1, vocab_size)),
        banned_token_ids=(0,),
        top_p=0.9,
    )
    raw = torch.randn(2, vocab_size)
    free = asked(ChoiceRules(0, temperature=1.0), 3, vocab_size)
    chosen = choose(raw, [asked(rules, 3, vocab_size), free]).tolist()
    assert chosen[0] == STUCK
    assert chosen[1] == choose(raw[1:], [free]).item()
    assert choose(raw[:1], [asked(rules, 9, vocab_size)]).item() >= 0


def test_half_precision_and_float64_logits_are_taken_as_they_are():
    raw = torch.randn(3, 9000).half()
    rows = [asked(ChoiceRules(0, temperature=1.0, top_p=0.9, seed=i), 1, 9000) for i in range(3)]
    assert torch.equal(choose(raw, rows), choose(raw.double(), rows))
    assert torch.equal(choose(raw, rows), choose(raw.float(), rows))


def test_drawing_among_some_tokens_is_drawing_where_the_others_are_banned():
    torch.manual_seed(6)
    ids = torch.arange(0, 9000, 7)
    raw = torch.randn(3, len(ids)) * 2
    rows = [
        asked(ChoiceRules(0, temperature=1.0, seed=1), 5, 9000),
        asked(ChoiceRules(0, temperature=1.0, top_p=0.9, seed=2, logit_bias=((14, 3.0),)), 5, 9000),
        asked(ChoiceRules(0, logit_bias=((21, 30.0), (22, 90.0))), 5, 9000),
    ]
    full = torch.full((3, 9000), float("-inf"))
    full[:, ids] = raw
    assert torch.equal(choose(raw, rows, ids), choose(full, rows))
    assert choose(raw, rows, ids)[2] == 21


def test_drawn_tokens_follow_the_softmax():
    """Chi-square over many positions of one row of logits; the fast way and the definition."""
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04], dtype=torch.float64)
    number = 4000
    for vocab_size in (5, 9000):
        raw = torch.full((1, vocab_size), float("-inf"), dtype=torch.float64)
        raw[0, :5] = probabilities.log()
        one = asked(ChoiceRules(0, temperature=1.0, seed=12), 1, vocab_size, number - 1)
        counts = choose(raw.expand(number, -1)[:, :vocab_size], [one]).bincount(minlength=5)
        expected = probabilities * number
        assert (((counts - expected) ** 2) / expected).sum() < 23.5  # 4 degrees, one in 10,000
