"""Requests through the whole path, workers well: the same tokens however served."""

from __future__ import annotations

import asyncio
import io

import pytest
from coordinator_world import check, request, world
from toy import VOCAB, continuation, noise_language, target_language

from coordinator.scheduler.replay import replay_lines
from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.generation import GenerationRequest, TextPrompt, TokenPrompt
from exspec.core.params import SamplingParams

PROMPTS = [(11, 0, 2), (7,), (3, 3, 3, 3, 3, 3), tuple(range(5, 45)), (0,), (90, 1)]


@pytest.mark.parametrize("k", [0, 1, 4, None])
async def test_plain_and_speculative_give_the_same_tokens(k):
    async with world() as made:
        await made.target()
        await made.draft()
        for prompt in PROMPTS:
            answer = await made.generate(prompt, 23, k)
            check(answer, prompt, 23)
            assert answer.started is not None
            assert answer.started.num_prompt_tokens == len(prompt)
            stats = answer.completed.speculation
            assert bool(stats.num_draft_tokens) is (k != 0)


@pytest.mark.parametrize(
    ("length", "num_rounds"),
    [
        (3, 5),  # short enough to be verified with its first drafts: 5 times 5
        (5, 5),
        (6, 6),  # 1 from the prefill, 4 times 5, and 4 of a last one
        (30, 6),
    ],
)
async def test_a_draft_that_is_always_right_brings_k_plus_1_tokens_a_round(length, num_rounds):
    prompt = tuple(range(5, 5 + length))
    async with world() as made:
        made.patience.hold()
        await made.target()
        await made.draft(language=target_language)
        answer = await made.generate(prompt, 25)
    check(answer, prompt, 25)
    stats = answer.completed.speculation
    assert stats.num_rounds == num_rounds
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert stats.acceptance_rate == 1


async def test_a_draft_that_is_always_wrong_costs_rounds_and_changes_nothing():
    async with world() as made:
        await made.target()
        await made.draft(language=noise_language)
        answer = await made.generate(max_tokens=9)
    check(answer, max_tokens=9)
    assert answer.completed.speculation.num_accepted_tokens == 0
    assert answer.completed.speculation.num_rounds == 9


async def test_more_requests_than_slots_are_refilled_and_all_end_right():
    async with world(batch_size=3) as made:
        await made.target(num_slots=2)
        await made.draft(num_slots=2)
        asked = [((i + 5, 2, 1), 3 + i % 7) for i in range(15)]
        answers = await asyncio.gather(*(made.generate(*a) for a in asked))
        for answer, (prompt, max_tokens) in zip(answers, asked, strict=True):
            check(answer, prompt, max_tokens)
        totals = made.parts.view.status().totals
        assert totals.num_requests == 15
        assert totals.num_generated_tokens == sum(count for _prompt, count in asked)
        assert totals.num_failed_requests == 0


async def test_fewer_draft_slots_than_rows_is_no_trouble():
    async with world() as made:
        await made.target()
        await made.draft(num_slots=1)
        answers = await asyncio.gather(*(made.generate((i + 5,)) for i in range(6)))
        for i, answer in enumerate(answers):
            check(answer, (i + 5,))


async def test_a_long_prompt_goes_in_chunks():
    prompt = tuple(5 + i % 80 for i in range(200))
    async with world(max_prefill_tokens=16) as made:
        target = await made.target()
        await made.draft()
        check(await made.generate(prompt, 20), prompt, 20)
        assert max(target.runner.num_fed) == 16


async def test_stop_tokens_end_a_request_with_the_token():
    truth = continuation((11, 0, 2), 20)
    stop = truth[7]
    async with world() as made:
        await made.target()
        await made.draft()
        answer = await made.ask(request(stop_token_ids=(stop,)))
        assert answer.tokens == truth[: truth.index(stop) + 1]
        assert answer.completed.finish_reason is FinishReason.STOP_TOKEN


async def test_the_models_own_stop_tokens_count_unless_told_otherwise():
    truth = continuation((11, 0, 2), 20)
    async with world() as made:
        worker = made.new(role_target(), "target")
        worker.model = with_stops(worker.model, truth[7])
        await made.start(worker)
        answer = await made.ask(request())
        assert answer.tokens == truth[: truth.index(truth[7]) + 1]
        answer = await made.ask(request(ignore_eos=True))
        check(answer)
        assert answer.completed.finish_reason is FinishReason.LENGTH


def role_target():
    from exspec.core.ids import Role

    return Role.TARGET


def with_stops(model, *stops: int):
    from dataclasses import replace

    return replace(model, stop_token_ids=stops)


async def test_a_client_that_leaves_frees_both_workers():
    async with world() as made:
        target = await made.target(capacity=10_000)
        draft = await made.draft(capacity=10_000)
        seen = asyncio.Event()
        asking = asyncio.create_task(made.ask(request(max_tokens=9000), seen.set))
        await seen.wait()
        await made.bell.until(
            lambda: target.sessions.num_sequences and draft.sessions.num_sequences
        )
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await made.settle()
        assert (target.sessions.num_sequences, draft.sessions.num_sequences) == (0, 0)
        check(await made.generate())


async def test_clients_that_leave_while_waiting_or_in_flight_leave_nothing():
    async with world() as made:
        target = await made.target(num_slots=2)
        await made.draft()
        target.runner.gate.clear()
        asked = [asyncio.create_task(made.generate((i + 5,))) for i in range(6)]
        await made.bell.until(lambda: len(made.driver.ledger) == 6)
        for task in asked[::2]:
            task.cancel()
        await made.bell.until(lambda: len(made.driver.ledger) == 3)
        target.runner.gate.set()
        for i in (1, 3, 5):
            check(await asked[i], (i + 5,))
        await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("max_waiting", [0, 2])
async def test_the_queue_is_bounded(max_waiting):
    async with world(max_waiting=max_waiting) as made:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        asked = [asyncio.create_task(made.generate()) for _ in range(1 + max_waiting)]
        await made.bell.until(lambda: len(made.driver.ledger) == 1 + max_waiting)
        refused = await made.generate()
        assert isinstance(refused.error, errors.QueueFullError)
        assert refused.error.retry_after_seconds > 0
        assert refused.error.request_id
        assert len(made.driver.ledger) == 1 + max_waiting
        target.runner.gate.set()
        for task in asked:
            check(await task)


@pytest.mark.parametrize(
    ("asked", "error", "field"),
    [
        (request(prompt=(5, VOCAB)), errors.InvalidRequestError, "prompt"),
        (request(stop_token_ids=(VOCAB,)), errors.InvalidRequestError, "stop_token_ids"),
        (request(prompt=(5,) * 256, max_tokens=1), errors.ContextLengthError, "prompt"),
        (request(prompt=(5,) * 200, max_tokens=57), errors.ContextLengthError, "max_tokens"),
        (GenerationRequest(TextPrompt("x")), errors.InvalidRequestError, "prompt"),
        (
            GenerationRequest(TokenPrompt((5,)), model="other", request_id="mine"),
            errors.ModelNotFoundError,
            None,
        ),
        (
            GenerationRequest(TextPrompt(""), request_id="mine"),
            errors.InvalidRequestError,
            "prompt",
        ),
    ],
)
async def test_bad_requests_are_refused_by_name_and_touch_nothing(asked, error, field):
    async with world() as made:
        target = await made.target()
        answer = await made.ask(asked)
        assert type(answer.error) is error
        assert getattr(answer.error, "field", None) == field
        assert answer.started is None
        assert answer.error.request_id.startswith(asked.request_id or "req-")
        assert target.runner.passes == []
        assert made.parts.view.status().totals.num_requests == 0


async def test_max_tokens_is_what_the_context_leaves_unless_given():
    asked = GenerationRequest(TokenPrompt((5,) * 250), has_max_tokens=False)
    async with world() as made:
        await made.target()
        await made.draft()
        answer = await made.ask(asked)
        check(answer, (5,) * 250, 6)
        check(await made.generate((5,) * 200, 56), (5,) * 200, 56)


async def test_one_bad_prompt_of_a_batch_does_not_touch_the_others():
    from exspec.v1 import generation_pb2 as pb
    from exspec.wire import convert_generation as convert
    from exspec.wire.convert_sampling import sampling_to_message

    prompts = [(5, 6), (VOCAB,), (), (9,)]
    batch = pb.GenerateBatchRequest(
        request_id="b",
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt)) for prompt in prompts],
        sampling=sampling_to_message(SamplingParams(max_tokens=12)),
    )
    async with world() as made:
        await made.target()
        await made.draft()
        tokens: dict[int, list[int]] = {}
        ends: dict[int, object] = {}
        async for message in made.stub.GenerateBatch(batch):
            event = convert.batch_event_from_message(message)
            assert message.index not in ends
            if message.HasField("delta"):
                tokens.setdefault(message.index, []).extend(message.delta.token_ids)
            elif message.HasField("started"):
                assert message.started.request_id == f"b-{message.index}"
            else:
                ends[message.index] = event
    assert {i: tuple(t) for i, t in tokens.items()} == {
        0: continuation((5, 6), 12),
        3: continuation((9,), 12),
    }
    assert set(ends) == {0, 1, 2, 3}
    for i in (1, 2):
        assert isinstance(ends[i].error, errors.InvalidRequestError)
        assert ends[i].error.field == "prompt"


async def test_a_client_that_leaves_a_batch_frees_everything():
    from exspec.v1 import generation_pb2 as pb

    batch = pb.GenerateBatchRequest(
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=[i + 5])) for i in range(6)],
        sampling=pb.SamplingParams(max_tokens=9000),
    )
    async with world() as made:
        await made.target(capacity=10_000, num_slots=4)
        await made.draft(capacity=10_000)
        call = made.stub.GenerateBatch(batch)
        for _ in range(8):
            assert (await call.read()).WhichOneof("event") in ("started", "delta")
        call.cancel()
        await made.settle()


async def test_a_recorded_trace_replays():
    trace = io.StringIO()
    async with world(trace, batch_size=2) as made:
        await made.target()
        draft = await made.draft()
        await asyncio.gather(*(made.generate((i + 5,)) for i in range(5)))
        await draft.break_stream()
        await made.generate()
    lines = trace.getvalue().splitlines()
    assert len(lines) > 20
    replay_lines(lines)


async def test_a_request_before_the_first_target_waits_for_it():
    async with world() as made:
        asking = asyncio.create_task(made.generate())
        await asyncio.sleep(0.05)
        assert not asking.done()
        await made.target()
        check(await asking)


async def test_a_request_that_no_target_comes_for_is_unavailable():
    async with world(unavailable_seconds=0.1) as made:
        answer = await made.generate()
        assert isinstance(answer.error, errors.UnavailableError)
        assert answer.error.request_id
