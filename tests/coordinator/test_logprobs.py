"""Logprobs through the whole path: one per token that is delivered, those of a prompt once."""

from __future__ import annotations

import asyncio

import pytest
from coordinator_world import Answer, check, request, under_way, world
from ruled import LONG, PROMPT, entries, sampled
from toy import continuation
from toy_choices import toy_logprobs

from exspec.core import errors
from exspec.core.choosing import ChoiceRules


def expected_logprobs(prompt, tokens, number):
    """One for each generated token."""
    log = [*prompt, *tokens]
    places = range(len(prompt), len(log))
    return tuple(toy_logprobs(log[:place], log[place], number) for place in places)


def delivered(answer: Answer):
    return tuple(one for delta in answer.deltas for one in delta.logprobs)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("number", [0, 2])
async def test_there_is_a_logprob_for_every_token_that_is_delivered(k, number):
    """Those of bonus tokens as well, and none behind a stop token in the middle of a block."""
    truth = continuation(PROMPT, 20)
    async with world() as made:
        await made.target()
        await made.draft()
        for stop in truth[3:12]:
            answer = await made.ask(request(k=k, logprobs=number, stop_token_ids=(stop,)))
            assert answer.tokens == truth[: truth.index(stop) + 1]
            assert delivered(answer) == expected_logprobs(PROMPT, answer.tokens, number)
            for delta in answer.deltas:
                assert len(delta.logprobs) == len(delta.token_ids)


@pytest.mark.parametrize("chunk", [1, 7, 512])
async def test_logprobs_of_the_prompt_come_once_with_the_first_tokens(chunk):
    async with world(max_prefill_tokens=chunk) as made:
        await made.target()
        await made.draft()
        answer = await made.ask(request(LONG, prompt_logprobs=2))
        check(answer, LONG)
        expected = tuple(toy_logprobs(LONG[:i], LONG[i], 2) for i in range(1, len(LONG)))
        assert answer.deltas[0].prompt_logprobs == expected
        assert all(not delta.prompt_logprobs for delta in answer.deltas[1:])


async def test_logprobs_of_a_prompt_of_one_token_are_none():
    async with world() as made:
        await made.target()
        answer = await made.ask(request((5,), prompt_logprobs=2))
        check(answer, (5,))
        assert all(not delta.prompt_logprobs for delta in answer.deltas)


async def test_logprobs_of_the_prompt_survive_a_target_that_dies_between_its_chunks():
    async with world(max_prefill_tokens=8) as made:
        first = await made.target("first")
        passes = first.runner.passes
        first.runner.on_pass = lambda: first.runner.gate.clear() if len(passes) == 3 else None
        asking = asyncio.create_task(made.ask(request(LONG, prompt_logprobs=0, logprobs=0)))
        await made.bell.until(lambda: len(passes) >= 3 and made.in_flight(first))
        await made.target("second")
        await made.forget(first)
        answer = await asking
        check(answer, LONG)
        expected = tuple(toy_logprobs(LONG[:i], LONG[i], 0) for i in range(1, len(LONG)))
        assert answer.deltas[0].prompt_logprobs == expected
        assert delivered(answer) == expected_logprobs(LONG, answer.tokens, 0)


async def test_a_target_that_is_told_the_log_later_is_not_asked_for_the_prompt_again():
    async with world() as made:
        first = await made.target("first", capacity=4000)
        asked = request(LONG, 600, prompt_logprobs=1, temperature=0.7, seed=5)
        asking = await under_way(made, asked)
        await made.target("second", capacity=4000)
        await made.forget(first)
        answer = await asking
        assert answer.tokens == sampled(LONG, 600, temperature=0.7, seed=5)
        assert sum(bool(delta.prompt_logprobs) for delta in answer.deltas) == 1
        sent = entries(made, "second")
        assert sent[0].rules == ChoiceRules(len(LONG), temperature=0.7, seed=5)
        assert all(entry.next_token is None for entry in sent)


async def test_a_target_that_leaves_logprobs_out_ends_that_request_and_no_other():
    def without(reply):
        for result in reply.results:
            del result.logprobs[:]
            del result.prompt_logprobs[:]
        return reply

    async with world() as made:
        target = await made.target()
        target.tamper = without
        for asked in ({"logprobs": 1}, {"prompt_logprobs": 1}):
            answer, other = await asyncio.gather(made.ask(request(**asked)), made.generate())
            assert isinstance(answer.error, errors.PeerError)
            assert "left out logprobs" in answer.error.message
            check(other)
