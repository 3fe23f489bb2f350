"""Rules of choice drawn at random, so that they matter: they name tokens that would be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from exspec.core.choosing import ChoiceRules

CHANCE = 0.4
"""Of each parameter to be there."""


def drawn_rules(
    random: Random,
    num_prompt_tokens: int,
    near: Sequence[int],
    vocab_size: int,
    stops: Sequence[int] = (),
) -> ChoiceRules:
    """Any combination. `near` are tokens of the prompt, and likely ones; `stops` end it."""
    rules = ChoiceRules(
        num_prompt_tokens,
        temperature=random.choice([0.0, 0.3, 1.0, 1.0, 2.5]),
        seed=random.choice([random.randrange(9), random.getrandbits(64)]),
        ending_token_ids=tuple(sorted(set(stops))),
    )
    for name, draw in PARAMETERS.items():
        if random.random() < CHANCE:
            rules = replace(rules, **{name: draw(random, near, vocab_size)})
    return rules


def _ids(random: Random, near: Sequence[int], vocab_size: int, share: float) -> tuple[int, ...]:
    """A share of the vocabulary, and of what is near."""
    drawn = random.choices(near, k=1 + int(share * len(near)))
    drawn += random.choices(range(vocab_size), k=int(share * vocab_size))
    return tuple(sorted(set(drawn)))


def _words(random: Random, near: Sequence[int], _: int) -> tuple[tuple[int, ...], ...]:
    """Runs of tokens that would come, of one to three."""
    starts = [random.randrange(len(near)) for _ in range(6)]
    return tuple({tuple(near[start : start + random.randint(1, 3)]) for start in starts})


PARAMETERS = {
    "top_k": lambda random, near, size: random.choice([1, 3, 20, 200, size - 1, size, 2 * size]),
    "top_p": lambda random, near, size: random.choice([0.01, 0.5, 0.9, 0.999]),
    "min_p": lambda random, near, size: random.choice([0.02, 0.3, 1.0]),
    "typical_p": lambda random, near, size: random.choice([0.1, 0.6, 0.95]),
    "repetition_penalty": lambda random, near, size: random.choice([0.5, 1.1, 2.0]),
    "presence_penalty": lambda random, near, size: random.choice([-1.5, 0.7, 2.0]),
    "frequency_penalty": lambda random, near, size: random.choice([-1.0, 0.4, 2.0]),
    "logit_bias": lambda random, near, size: tuple(
        (token, random.uniform(-9, 9)) for token in _ids(random, near, size, 0.1)
    ),
    "min_tokens": lambda random, near, size: random.randint(1, 9),
    "bad_words": _words,
    "banned_token_ids": lambda random, near, size: _ids(random, near, size, 0.3),
    "allowed_token_ids": lambda random, near, size: _ids(random, near, size, 0.6),
    "num_logprobs": lambda random, near, size: random.choice([0, 1, 5]),
    "num_prompt_logprobs": lambda random, near, size: random.choice([0, 3]),
}
"""How each is drawn, given tokens that are near and the size of the vocabulary."""
