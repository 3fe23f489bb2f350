"""The promise with rules: whatever a request asks for, however its rows are grouped, drafted,
delayed and moved, tokens and logprobs are those of plain decoding by transformers' own processors.
"""

from __future__ import annotations

import functools
from random import Random

import pytest

from coordinator.scheduler.policies import POLICIES
from exspec.core.choosing import ChoiceRules
from exspec.engine.kv.layout import KvLayoutName
from tests.engine.conftest import reference_of
from tests.engine.drawn_rules import drawn_rules
from tests.engine.policy_courses import (
    MAX_TOKENS,
    PROMPTS,
    Course,
    drawn_request,
    limits,
    seed_of,
)
from tests.engine.policy_workers import DRAFTS, Setting
from tests.engine.policy_world import Request

NUM_KINDS = 36
VOCAB_SIZE = 600
"""Large enough for draws that look at the likeliest tokens first."""
FAMILY = f"llama-gqa/{VOCAB_SIZE}"


@functools.cache
def kinds(family: str) -> tuple[Request, ...]:
    """Requests of every sort, which courses draw from: plain ones too, and one that gets stuck."""
    random = Random(13)
    drawn: list[Request] = []
    for _ in range(NUM_KINDS):
        request = drawn_request(random, family)
        likely = reference_of(family, request.prompt, MAX_TOKENS)
        if random.random() < 0.85:
            request.rules = drawn_rules(
                random, len(request.prompt), (*request.prompt, *likely), VOCAB_SIZE, request.stops
            )
        drawn.append(request)
    token = reference_of(family, PROMPTS[0], MAX_TOKENS)[0]
    ends = ChoiceRules(len(PROMPTS[0]), allowed_token_ids=(token,), bad_words=((token,) * 4,))
    return (*drawn, Request(PROMPTS[0], MAX_TOKENS, rules=ends))


def one_of_many(random: Random, family: str) -> Request:
    kind = random.choice(kinds(family))
    return Request(
        kind.prompt, kind.max_tokens, kind.stops, random.choice([None, None, 0, 2]), kind.rules
    )


@pytest.mark.parametrize("draft", [*DRAFTS, "none"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_row_has_rules_of_its_own(policy, draft):
    random = Random(f"{policy} {draft}")
    setting = Setting(
        policy,
        random.choice(["auto", *map(str, range(1, 7))]),
        random.choice(list(KvLayoutName)),
        limits(random.choice([2, 5]), random.choice([1, 2])),
        FAMILY,
        num_targets=random.choice([1, 2]),
        num_drafts=0 if draft == "none" else random.choice([1, 2]),
        num_ahead=0 if draft in ("none", "ngram") else random.choice([0, 3]),
        draft="fallible" if draft == "none" else draft,
    )
    Course(setting, seed_of(setting), one_of_many).run()
