"""Which rules a draft follows: the target's, as far as it can. Values only.

Rules a draft leaves out cost acceptance, never correctness: the target decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from exspec.core.choosing import ChoiceRules


class SampleMethod(Enum):
    """How drafts are chosen when the request samples."""

    SHARED = "shared"
    """With the target's own noise: what it would choose if it had the draft's numbers."""
    GREEDY = "greedy"
    """The likeliest token the rules leave."""


def draft_rules(rules: ChoiceRules, method: SampleMethod) -> ChoiceRules:
    """What a draft follows of a request's rules. Nobody reads logprobs of drafts."""
    followed = replace(rules, num_logprobs=None, num_prompt_logprobs=None)
    return replace(followed, temperature=0.0) if method is SampleMethod.GREEDY else followed


def ever_fewer(rules: ChoiceRules, vocab_size: int) -> Iterator[ChoiceRules]:
    """The rules; without the ids that a smaller vocabulary lacks; without the grammar, too."""
    yield rules
    known = _known_only(rules, vocab_size)
    if known != rules:
        yield known
    if rules.grammar is not None:
        yield replace(known, grammar=None)


def _known_only(rules: ChoiceRules, vocab_size: int) -> ChoiceRules:
    def known(token_ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token_id for token_id in token_ids if token_id < vocab_size)

    return replace(
        rules,
        logit_bias=tuple(pair for pair in rules.logit_bias if pair[0] < vocab_size),
        ending_token_ids=known(rules.ending_token_ids),
        banned_token_ids=known(rules.banned_token_ids),
        allowed_token_ids=known(rules.allowed_token_ids),
        bad_words=tuple(word for word in rules.bad_words if known(word) == word),
    )
