"""The engine's choices are the judge's, place by place, whatever the logits look like: ties, small
and large vocabularies, flat and steep laws, types of number, and any rules, all in one batch.
"""

from __future__ import annotations

from random import Random

import pytest
import torch

from exspec.engine.choosing.choose import choose
from exspec.engine.choosing.choosing import Asked, Choosing
from exspec.engine.reference_sampler import ReferenceSampler
from exspec.engine.rows import STUCK
from tests.engine.drawn_rules import drawn_rules

NUM_ROWS = 8
SIZES = (97, 600, 1500)


def drawn_logits(random: Random, num_places: int, vocab_size: int) -> torch.Tensor:
    """float64 `[num_places, vocab_size]`; some are rounded, so that many are equal."""
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    normal = torch.randn(num_places, vocab_size, generator=generator, dtype=torch.float64)
    logits = normal * random.choice([0.3, 1.0, 4.0])
    if random.random() < 0.5:  # a few tokens far above the others
        logits[:, :: random.choice([7, 50])] += random.choice([2.0, 8.0])
    logits -= random.choice([0.0, 3.0, 20.0])
    return (logits * 4).round() / 4 if random.random() < 0.3 else logits


def drawn_rows(random: Random, vocab_size: int) -> tuple[list[Asked], torch.Tensor]:
    asked, logits = [], []
    for _ in range(NUM_ROWS):
        tokens = tuple(random.choices(range(vocab_size), k=random.randint(1, 12)))
        drafts = tuple(random.choices((*tokens, *range(9)), k=random.randint(0, 3)))
        own = drawn_logits(random, len(drafts) + 1, vocab_size)
        own[:, [*tokens, *drafts]] += random.choice([0.0, 2.0, 6.0])  # what penalties are about
        near = (*tokens, *drafts, *own.argmax(dim=1).tolist())
        num_prompt = random.randint(1, len(tokens))
        rules = drawn_rules(random, num_prompt, near, vocab_size, near[-3:])
        asked.append(Asked(Choosing(rules, vocab_size), len(tokens), tokens, drafts))
        logits.append(own)
    return asked, torch.cat(logits)


def judged(asked: list[Asked], logits: torch.Tensor) -> list[int]:
    chosen, rows = [], iter(logits)
    for one in asked:
        judge = ReferenceSampler(one.choosing.rules)
        for place in range(one.num_places):
            choice = judge.choose(next(rows), (*one.tokens, *one.drafts[:place]))
            chosen.append(STUCK if choice is None else choice)
    return chosen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_choices_are_the_judges(seed, dtype):
    random = Random(f"{seed} {dtype}")
    asked, logits = drawn_rows(random, SIZES[seed % len(SIZES)])
    logits = logits.to(dtype)
    assert choose(logits, asked).tolist() == judged(asked, logits)
