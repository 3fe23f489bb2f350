"""Bounds of a generation, what a request may ask of its drafts, and how speculation is counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from coordinator_world import check, request, under_way, world
from fake_worker import held
from ruled import PROMPT, sampled
from toy import continuation, noise_language, target_language

from exspec.core.acceptance import FinishReason
from exspec.core.generation import GenerationRequest, TokenPrompt
from exspec.core.rounds import DraftBatch, VerifyBatch
from exspec.wire import convert_generation as convert


@pytest.mark.parametrize("length", [14, 15, 16, 17, 40])
async def test_a_draft_that_can_hold_less_than_the_target_stops_drafting_for_that_row(length):
    """The others of the batch are drafted for as before, and nothing is made up."""
    prompt = tuple(5 + i % 80 for i in range(length))
    async with world() as made:
        await made.target()
        await made.draft(capacity=16, language=target_language)
        long, short = await asyncio.gather(made.generate(prompt), made.generate((9,), 12))
        check(long, prompt)
        check(short, (9,), 12)
        assert short.completed.speculation.num_accepted_tokens > 0
        assert long.completed.speculation.num_draft_tokens <= max(0, 16 - length)
        for name, sent in made.sent:
            if name == "draft" and isinstance(sent, DraftBatch):
                assert all(e.end + e.num_draft_tokens <= 16 for e in sent.entries)


@pytest.mark.parametrize("room", range(1, 7))
async def test_no_block_reaches_beyond_the_context_or_max_tokens(room):
    prompt = tuple(5 + i % 80 for i in range(64 - room))
    async with world() as made:
        await made.target(capacity=64)
        await made.draft(capacity=64, language=target_language)
        open_ended = GenerationRequest(TokenPrompt(prompt), has_max_tokens=False)
        other = asyncio.create_task(made.generate((9,), room))
        answer = await made.ask(open_ended)
        assert answer.tokens == continuation(prompt, room)
        assert answer.completed.finish_reason is FinishReason.LENGTH
        assert answer.completed.usage.num_generated_tokens == room
        check(await other, (9,), room)
        for _, sent in made.sent:
            if isinstance(sent, VerifyBatch):
                assert all(e.end + len(e.draft_tokens) < 64 for e in sent.entries)


async def test_own_k_priority_and_deadline_combine():
    async with world() as made:
        target = await made.target(num_slots=1)
        await made.draft()
        target.runner.gate.clear()
        first = asyncio.create_task(made.generate())
        await held(target)
        order: list[str] = []

        async def ask(name: str, k: int, priority: int) -> None:
            asked = replace(
                request((9,), 8, k, temperature=1.0, seed=6), priority=priority, request_id=name
            )
            call = made.stub.Generate(convert.request_to_message(asked), timeout=30)
            tokens: list[int] = []
            async for message in call:
                tokens += message.delta.token_ids
                if message.HasField("completed"):
                    assert (message.completed.speculation.num_draft_tokens > 0) is (k > 0)
            assert tuple(tokens) == sampled((9,), 8, temperature=1.0, seed=6)
            order.append(name)

        later = asyncio.create_task(ask("later", 0, 5))
        await made.bell.until(lambda: made.driver.scheduler.num_waiting == 1)
        sooner = asyncio.create_task(ask("sooner", 3, -5))
        await made.bell.until(lambda: made.driver.scheduler.num_waiting == 2)
        target.runner.gate.set()
        check(await first)
        await asyncio.gather(later, sooner)
        assert order == ["sooner", "later"]


# Statistics


@pytest.mark.parametrize("language", [target_language, noise_language, None])
@pytest.mark.parametrize("k", [1, 4])
async def test_what_is_emitted_was_accepted_or_chosen_in_a_round(language, k):
    """emitted = accepted + rounds - what the end cut off; all drafts are accounted for."""
    truth = continuation(PROMPT, 21)
    async with world() as made:
        await made.target()
        await made.draft(**({"language": language} if language else {}))
        for stop_token_ids in ((), (truth[9],)):
            before = len(made.sent)
            asked = request(max_tokens=21, k=k, stop_token_ids=stop_token_ids)
            answer = await made.ask(asked)
            stats = answer.completed.speculation
            emitted = answer.completed.usage.num_generated_tokens
            num_cut = stats.num_accepted_tokens + stats.num_rounds - emitted
            assert 0 <= num_cut <= k
            assert sum(stats.num_drafts_per_position) == stats.num_draft_tokens
            assert sum(stats.num_accepted_per_position) == stats.num_accepted_tokens
            assert len(stats.num_drafts_per_position) <= k
            pairs = zip(stats.num_drafts_per_position, stats.num_accepted_per_position, strict=True)
            assert all(drafted >= accepted for drafted, accepted in pairs)
            verified = sum(
                len(entry.draft_tokens)
                for _, sent in made.sent[before:]
                if isinstance(sent, VerifyBatch)
                for entry in sent.entries
            )
            assert stats.num_draft_tokens == verified
            num_useful = emitted - stats.num_rounds
            assert stats.num_wasted_tokens >= stats.num_draft_tokens - max(num_useful, 0) - num_cut


async def test_drafts_that_came_for_a_request_that_is_lost_are_wasted():
    async with world() as made:
        await made.target(capacity=10_000)
        await made.draft(capacity=10_000, language=noise_language)
        asking = await under_way(made, request(max_tokens=9000))
        await made.bell.until(lambda: made.pool.accounting.totals.num_draft_tokens > 8)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await made.settle()
        wasted = made.pool.accounting.measures.value.num_wasted_tokens
        assert wasted >= made.pool.accounting.totals.num_draft_tokens > 8


async def test_times_add_up():
    async with world() as made:
        await made.target()
        answer = await made.generate()
        times = answer.completed.timings
        parts = times.queue_seconds + times.prefill_seconds + times.decode_seconds
        assert parts == pytest.approx(times.total_seconds)
        assert min(times.queue_seconds, times.prefill_seconds, times.decode_seconds) >= 0
        assert times.seconds_per_token(20) == pytest.approx(times.decode_seconds / 19)
