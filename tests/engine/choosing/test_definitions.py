"""What each rule does to logits is what transformers does; frequency and presence by a loop."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.logits_process import MinNewTokensLengthLogitsProcessor

from exspec.core.choosing import ChoiceRules
from exspec.engine.choosing.choosing import Asked, Choosing
from exspec.engine.choosing.drawing import cut, draws_of
from exspec.engine.choosing.processors import apply_rules

VOCAB_SIZE = 61
NUM_PROMPT = 7
LOG = tuple(random.Random(4).randrange(VOCAB_SIZE) for _ in range(20))
DRAFTS = (3, LOG[2], 3, 60)


def logits(num_rows: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(num_rows, vocab_size, dtype=torch.float64) * 3


def asked(rules: ChoiceRules, vocab_size: int = VOCAB_SIZE) -> Asked:
    rules = replace(rules, num_prompt_tokens=NUM_PROMPT)
    return Asked(Choosing(rules, vocab_size), len(LOG), LOG, DRAFTS)


def processed(rules: ChoiceRules, raw: torch.Tensor) -> torch.Tensor:
    scores = raw.clone()
    apply_rules(scores, [asked(rules, raw.shape[1])])
    return scores


def by_transformers(processors, raw: torch.Tensor) -> torch.Tensor:
    """One place after the other, each with the tokens before it."""
    rows = []
    for place, row in enumerate(raw):
        ids = torch.tensor([[*LOG, *DRAFTS[:place]]])
        scores = row[None].clone()
        for processor in processors:
            scores = processor(ids, scores)
        rows.append(scores[0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("rules", "processors"),
    [
        (
            ChoiceRules(0, logit_bias=((3, 2.5), (60, -1.5))),
            [SequenceBiasLogitsProcessor({(3,): 2.5, (60,): -1.5})],
        ),
        (ChoiceRules(0, repetition_penalty=1.7), [RepetitionPenaltyLogitsProcessor(1.7)]),
        (ChoiceRules(0, repetition_penalty=0.6), [RepetitionPenaltyLogitsProcessor(0.6)]),
        (
            ChoiceRules(0, banned_token_ids=(4, 9)),
            [SuppressTokensLogitsProcessor([4, 9])],
        ),
        (
            ChoiceRules(0, min_tokens=15, ending_token_ids=(0, 5)),
            [MinNewTokensLengthLogitsProcessor(NUM_PROMPT, 15, [0, 5])],
        ),
        (
            ChoiceRules(0, bad_words=((8,), (3, 5), (LOG[-1], 3, LOG[2], 7), (9, 3, 2))),
            [
                NoBadWordsLogitsProcessor(
                    [[8], [3, 5], [LOG[-1], 3, LOG[2], 7], [9, 3, 2]], eos_token_id=None
                )
            ],
        ),
        (
            ChoiceRules(0, logit_bias=((3, 9.0),), repetition_penalty=1.2, bad_words=((3, 5),)),
            [
                SequenceBiasLogitsProcessor({(3,): 9.0}),
                RepetitionPenaltyLogitsProcessor(1.2),
                NoBadWordsLogitsProcessor([[3, 5]], eos_token_id=None),
            ],
        ),
    ],
)
def test_processors_do_what_those_of_transformers_do(rules, processors):
    raw = logits(len(DRAFTS) + 1)
    torch.testing.assert_close(
        processed(rules, raw), by_transformers(processors, raw), rtol=0, atol=1e-6
    )


def test_frequency_and_presence_count_generated_tokens_and_the_drafts_before():
    rules = ChoiceRules(0, frequency_penalty=0.4, presence_penalty=-0.9)
    raw = logits(len(DRAFTS) + 1)
    expected = raw.clone()
    for place in range(len(raw)):
        generated = [*LOG[NUM_PROMPT:], *DRAFTS[:place]]
        for token in set(generated):
            expected[place, token] -= 0.4 * generated.count(token)
            expected[place, token] -= -0.9
    assert torch.equal(processed(rules, raw), expected)


def test_allowed_tokens_and_a_grammar_leave_only_theirs():
    class Matcher:
        def masks(self, generated, drafts):
            assert tuple(generated) == LOG[NUM_PROMPT:]
            assert tuple(drafts) == DRAFTS
            words = np.zeros((3, 1), np.int32)  # fewer words than the vocabulary needs
            words[:, 0] = [1 << 5, -(1 << 31), (1 << 5) | 1]
            return words

    raw = logits(len(DRAFTS) + 1)
    allowed = processed(ChoiceRules(0, allowed_token_ids=(2, 50)), raw)
    assert [row.isfinite().nonzero()[:, 0].tolist() for row in allowed] == [[2, 50]] * 5
    one = asked(ChoiceRules(0))
    one.choosing.matcher = Matcher()
    apply_rules(raw, [one])
    left = [row.isfinite().nonzero()[:, 0].tolist() for row in raw]
    assert left == [[5], [31], [0, 5], [], []]


def test_tokens_the_head_has_no_logit_for_are_not_penalized():
    rules = ChoiceRules(0, repetition_penalty=2.0, frequency_penalty=1.0)
    raw = logits(len(DRAFTS) + 1)
    narrow = processed(rules, raw[:, :50])
    torch.testing.assert_close(narrow, processed(rules, raw)[:, :50], rtol=0, atol=0)


WARPERS = {
    "temperature": lambda value: [TemperatureLogitsWarper(value)] if value != 1 else [],
    "top_k": lambda value: [TopKLogitsWarper(value)] if value else [],
    "top_p": lambda value: [TopPLogitsWarper(value)] if value < 1 else [],
    "min_p": lambda value: [MinPLogitsWarper(value)] if value else [],
    "typical_p": lambda value: [TypicalLogitsWarper(value)] if value < 1 else [],
}
"""In the order of transformers."""

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}


def draw_cuts(seed: int) -> dict[str, float]:
    draw = random.Random(seed)
    cuts = {
        "temperature": draw.choice([0.3, 0.8, 1.0, 2.5]),
        "top_k": draw.choice([0, 1, 2, 7, 60, 61, 1000]),
        "top_p": draw.choice([0.05, 0.5, 0.9, 0.999, 1.0]),
        "min_p": draw.choice([0.0, 0.01, 0.3, 1.0]),
        "typical_p": draw.choice([0.1, 0.6, 0.95, 1.0]),
    }
    chosen = draw.sample(sorted(cuts), draw.randint(1, 5))
    return OFF | {name: cuts[name] for name in chosen}


@pytest.mark.parametrize("seed", range(60))
def test_cuts_keep_what_those_of_transformers_keep(seed):
    cuts = draw_cuts(seed)
    raw = logits(len(DRAFTS) + 1, seed)
    raw[:, 5] = float("-inf")
    draws = draws_of([asked(ChoiceRules(0, **cuts))], raw)
    ordered, tokens, is_kept = cut(raw, draws)
    warpers = [warper for name in WARPERS for warper in WARPERS[name](cuts[name])]
    expected = by_transformers(warpers, raw)
    found = torch.full_like(raw, float("-inf"))
    found.scatter_(1, tokens, ordered.masked_fill(~is_kept, float("-inf")))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_equal_logits_are_kept_in_the_order_of_their_ids():
    raw = torch.zeros(1, VOCAB_SIZE, dtype=torch.float64)
    one = Asked(Choosing(ChoiceRules(0, temperature=1.0, top_p=0.5), VOCAB_SIZE), 1, (), ())
    _, tokens, is_kept = cut(raw, draws_of([one], raw))
    assert tokens[is_kept].tolist() == list(range(31))
    one = Asked(Choosing(ChoiceRules(0, temperature=1.0, top_k=3), VOCAB_SIZE), 1, (), ())
    assert cut(raw, draws_of([one], raw))[2].all()
