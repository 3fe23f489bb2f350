"""Rules of choice drawn at random, so that they matter: they name tokens that would be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from exspec.core.choosing import ChoiceRules
from tests.engine.tiny import VOCAB_SIZE

CHANCE = 0.3
"""Of each parameter to be there."""


def drawn_rules(
    random: Random, prompt: Sequence[int], likely: Sequence[int], stops: Sequence[int] = ()
) -> ChoiceRules:
    """Any combination. `likely` is what comes without rules; `stops` end the sequence."""
    rules = ChoiceRules(
        len(prompt),
        temperature=random.choice([0.0, 0.3, 1.0, 1.0, 2.5]),
        seed=random.choice([random.randrange(9), random.getrandbits(64)]),
        ending_token_ids=tuple(sorted(set(stops))),
    )
    for name, draw in PARAMETERS.items():
        if random.random() < CHANCE:
            rules = replace(rules, **{name: draw(random, (*prompt, *likely))})
    return rules


def _ids(random: Random, near: Sequence[int], number: int) -> tuple[int, ...]:
    """Half of them from what is near."""
    drawn = [random.choice(near) for _ in range(number // 2)]
    return tuple({*drawn, *(random.randrange(VOCAB_SIZE) for _ in range(number // 2))})


def _words(random: Random, near: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Runs of tokens that would come, of one to three."""
    starts = [random.randrange(len(near)) for _ in range(6)]
    return tuple({tuple(near[start : start + random.randint(1, 3)]) for start in starts})


PARAMETERS = {
    "top_k": lambda random, _: random.choice([1, 3, 20, 96, 97, 500]),
    "top_p": lambda random, _: random.choice([0.01, 0.5, 0.9, 0.999]),
    "min_p": lambda random, _: random.choice([0.02, 0.3, 1.0]),
    "typical_p": lambda random, _: random.choice([0.1, 0.6, 0.95]),
    "repetition_penalty": lambda random, _: random.choice([0.5, 1.1, 2.0]),
    "presence_penalty": lambda random, _: random.choice([-1.5, 0.7, 2.0]),
    "frequency_penalty": lambda random, _: random.choice([-1.0, 0.4, 2.0]),
    "logit_bias": lambda random, near: tuple(
        (token, random.uniform(-9, 9)) for token in _ids(random, near, 8)
    ),
    "min_tokens": lambda random, _: random.randint(1, 9),
    "bad_words": _words,
    "banned_token_ids": lambda random, near: _ids(random, near, 30),
    "allowed_token_ids": lambda random, near: _ids(random, near, 60),
    "num_logprobs": lambda random, _: random.choice([0, 1, 5]),
    "num_prompt_logprobs": lambda random, _: random.choice([0, 3]),
}
"""How each is drawn, given tokens that are near."""
