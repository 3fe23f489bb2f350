"""How often rows of equal length are found: prompts of any length against prompts of one length.

Chooses the prompts of the paper's experiment; what is measured on them is in `exspec.bench.runs`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exspec.bench.runs import Configuration
from exspec.core.errors import InvalidRequestError

RANDOM = "random"
EQUAL = "equal"
TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSets:
    """Two sets of as many prompts each: drawn from all, and of one `equal_length` in tokens."""

    sets: Mapping[str, tuple[TokenIds, ...]]
    equal_length: int


def draw(texts: Sequence[str], number: int, seed: int) -> list[str]:
    """`number` of the texts without repetition; all of them, if there are no more."""
    return random.Random(seed).sample(list(texts), min(number, len(texts)))


def choose_prompts(prompts: Sequence[TokenIds], number: int, seed: int) -> PromptSets:
    """Draw both sets without repetition; the length is the one most prompts have.

    Of two lengths that are as frequent the shorter one is taken.

    Raises:
        InvalidRequestError: there are too few prompts, or too few of any one length.
    """
    if number > len(prompts):
        raise _too_few(f"{number} prompts were asked for, {len(prompts)} are there")
    counts = Counter(len(tokens) for tokens in prompts)
    length, count = max(counts.items(), key=lambda item: (item[1], -item[0]))
    if count < number:
        raise _too_few(
            f"{number} prompts of one length are needed; the most frequent length, {length} "
            f"tokens, has {count}"
        )
    drawn = random.Random(seed)
    equal = [tokens for tokens in prompts if len(tokens) == length]
    sets = {
        RANDOM: tuple(drawn.sample(list(prompts), number)),
        EQUAL: tuple(drawn.sample(equal, number)),
    }
    return PromptSets(sets, length)


def configurations_of(
    policies: Sequence[str], batch_sizes: Sequence[int], speculation: str
) -> tuple[Configuration, ...]:
    """Every policy at every batch size, on both sets of prompts."""
    return tuple(
        Configuration(policy, size, speculation, prompt_set)
        for policy in policies
        for size in batch_sizes
        for prompt_set in (RANDOM, EQUAL)
    )


def _too_few(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field="num_prompts")
