"""How toy models follow rules: what they choose is moved by the seed, and what is removed is not
chosen. No likeness to sampling: whoever has other rules, or none, has other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from exspec.core.choosing import ChoiceRules, TokenLogprobs

Language = Callable[[Sequence[int]], int]
VOCAB = 97
"""Ids of the toy languages; 0 to 4 are never chosen."""


@dataclass(frozen=True)
class ToyChoosing:
    """Stands for the engine's `Choosing`."""

    rules: ChoiceRules
    problem: str = ""


def sampled_language(context: Sequence[int], seed: int) -> int:
    """How far a choice is moved: depends on the seed and the position."""
    return crc32(f"{seed}/{len(context)}".encode()) % (VOCAB - 5)


def toy_choice(
    language: Language, context: Sequence[int], rules: ChoiceRules | None = None
) -> int | None:
    """The token after the context, or None if the rules leave none.

    Two languages that agree without rules agree with them.
    """
    choice = language(context)
    if rules is None:
        return choice
    if rules.temperature:
        key = crc32(repr((rules.seed, rules.num_prompt_tokens, rules.temperature)).encode())
        choice = 5 + (choice + sampled_language(context, key)) % (VOCAB - 5)
    removed = _removed(context, rules)
    tokens = (5 + (choice - 5 + i) % (VOCAB - 5) for i in range(VOCAB - 5))
    return next((token for token in tokens if token not in removed), None)


def toy_logprobs(context: Sequence[int], token: int, num_top: int) -> TokenLogprobs:
    """Of a token after the context; any numbers that depend on both will do."""
    start = crc32(bytes(token % 251 for token in context))
    values = [-(crc32(bytes((i,)), start) % 4096) / 256 for i in range(VOCAB)]
    best = sorted(range(VOCAB), key=lambda i: (-values[i], i))[:num_top]
    return TokenLogprobs(token, values[token], tuple((i, values[i]) for i in best))


def _removed(context: Sequence[int], rules: ChoiceRules) -> frozenset[int]:
    removed = set(rules.banned_token_ids)
    if rules.allowed_token_ids:
        removed |= set(range(VOCAB)) - set(rules.allowed_token_ids)
    if len(context) - rules.num_prompt_tokens < rules.min_tokens:
        removed |= set(rules.ending_token_ids)
    generated = tuple(context[rules.num_prompt_tokens :])
    for *before, last in rules.bad_words:
        if generated[max(0, len(generated) - len(before)) :] == tuple(before):
            removed.add(last)
    return frozenset(removed)
