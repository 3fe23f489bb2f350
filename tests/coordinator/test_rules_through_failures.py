"""Requests that sample, through whatever happens to workers: a sequence keeps its rules."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from coordinator_world import Answer, World, check, check_logprobs, request, world
from fake_worker import held
from toy import VOCAB, target_language

from exspec.core import errors
from exspec.core.choosing import ChoiceRules

MAX_TOKENS = 60
_NAMES = {
    "logprobs": "num_logprobs",
    "prompt_logprobs": "num_prompt_logprobs",
    "bad_words_ids": "bad_words",
}


@dataclass(frozen=True)
class Case:
    """A request and the rules that it comes to."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any]
    rules: ChoiceRules

    async def ask(self, made: World) -> Answer:
        return await made.ask(request(self.prompt, MAX_TOKENS, **self.sampling))

    def check(self, answer: Answer) -> None:
        check(answer, self.prompt, MAX_TOKENS, self.rules)
        check_logprobs(answer, self.prompt, self.rules)


def case(prompt, **sampling) -> Case:
    values = {_NAMES.get(name, name): value for name, value in sampling.items()}
    return Case(prompt, sampling, ChoiceRules(len(prompt), **values))


MIX = (
    case((11, 0, 2)),
    case((11, 0, 2), temperature=1.0, seed=1),
    case((11, 0, 2), temperature=1.0, seed=2, logprobs=2, prompt_logprobs=1),
    case(tuple(range(5, 45)), temperature=0.7, seed=1, repetition_penalty=1.3, prompt_logprobs=0),
    case((7,), banned_token_ids=tuple(range(5, 60)), logprobs=0),
)


@pytest.mark.parametrize("layout", ["slots", "padded"])
async def test_every_sequence_keeps_its_rules_when_workers_are_lost(layout):
    async with world(max_mixed_prefill_tokens=5, max_prefill_tokens=16) as made:
        made.patience.hold()
        targets = [await made.target(f"t{i}", kv_layout=layout) for i in range(2)]
        drafts = [await made.draft(f"d{i}", num_ahead=3 * i) for i in range(2)]
        asking = [asyncio.create_task(one.ask(made)) for one in MIX * 2]
        for worker in (targets[0], drafts[1], targets[1], drafts[0]):
            await held(worker)
            await worker.break_stream()
            worker.runner.gate.set()
        for one, answer in zip(MIX * 2, await asyncio.gather(*asking), strict=True):
            one.check(answer)
        assert all(worker.runner.opened for worker in (*targets, *drafts))


async def test_the_same_seed_gives_the_same_tokens_in_any_company():
    async with world() as made:
        await made.target(num_slots=3)
        await made.draft()
        alone = await MIX[2].ask(made)
        among = await asyncio.gather(*(one.ask(made) for one in (*MIX, *MIX)))
    for answer in (alone, among[2], among[7]):
        MIX[2].check(answer)


async def test_shared_noise_makes_every_draft_of_the_targets_own_model_right():
    async with world(num_speculative_tokens=4) as made:
        await made.target()
        await made.draft(language=target_language)
        answer = await MIX[1].ask(made)
    MIX[1].check(answer)
    stats = answer.completed.speculation
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    # A draft that came too late for its round is right as well, but costs a round of its own.
    assert stats.num_rounds <= -(-(MAX_TOKENS + stats.num_wasted_tokens) // 5) + 1


async def test_a_draft_that_cannot_follow_the_rules_costs_acceptance_only(caplog):
    """Its vocabulary ends before an id that the request names."""
    one = case((11, 0, 2), temperature=1.0, seed=3, banned_token_ids=(VOCAB + 9,))
    async with world() as made:
        await made.target(vocab_size=VOCAB + 10)
        draft = await made.draft()
        answer = await one.ask(made)
    one.check(answer)
    assert "draft.rules_not_followed field=banned_token_ids" in caplog.text
    assert draft.runner.opened[0].banned_token_ids == ()


async def test_a_row_without_a_token_left_ends_alone_by_the_name_of_the_field():
    """9 may come once, and nothing may come after it."""
    nothing_left = case((11, 0, 2), allowed_token_ids=(9,), bad_words_ids=((9, 9),))
    async with world() as made:
        await made.target()
        await made.draft()
        bad, good = await asyncio.gather(nothing_left.ask(made), MIX[1].ask(made))
    MIX[1].check(good)
    assert isinstance(bad.error, errors.InvalidRequestError)
    assert bad.error.field == "allowed_token_ids"
    assert bad.tokens == (9,)


async def test_a_row_beyond_the_drafts_context_goes_on_without_drafts_and_alone():
    """The others keep theirs, and the draft worker is asked for nothing it has to refuse."""
    async with world(num_speculative_tokens=4) as made:
        await made.target()
        draft = await made.draft(capacity=48, language=target_language)
        long, short = case(tuple(range(5, 45)), temperature=1.0, seed=1), MIX[1]
        answers = await asyncio.gather(long.ask(made), short.ask(made))
        beyond = await case(tuple(range(5, 60)), temperature=1.0, seed=1).ask(made)
    long.check(answers[0])
    short.check(answers[1])
    # From 41 tokens on to 48, and from 4 on to 48; then one token a round.
    of_long, of_short = (answer.completed.speculation for answer in answers)
    assert 0 < of_long.num_accepted_tokens == of_long.num_draft_tokens <= 8
    assert 30 <= of_short.num_accepted_tokens == of_short.num_draft_tokens
    assert beyond.error is None
    assert beyond.completed.speculation.num_draft_tokens == 0
    assert all(row.end <= 48 for rows in draft.runner.passes for row in rows)
