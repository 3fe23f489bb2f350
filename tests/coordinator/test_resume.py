"""Resuming through the whole path: only what the client lacks is generated and sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from coordinator_world import World, request, world
from toy import VOCAB, continuation, facts

from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.generation import GenerationRequest, Resume, TokenPrompt
from exspec.core.ids import Role
from exspec.core.params import SamplingParams
from exspec.v1 import generation_pb2 as pb
from exspec.wire import convert_generation as convert

PROMPT = (11, 0, 2)
FINGERPRINT = facts().fingerprint
TRUTH = continuation(PROMPT, 20)


def resumed(tokens, *, fingerprint: str = FINGERPRINT, **changes) -> GenerationRequest:
    """The usual request, after these tokens."""
    sampling = {name: changes.pop(name) for name in ("stop_token_ids",) if name in changes}
    return replace(
        request(PROMPT, **sampling), resume=Resume(tuple(tokens), fingerprint), **changes
    )


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 19])
async def test_the_rest_is_what_an_undisturbed_call_has_after_these_tokens(num_tokens):
    async with world() as made:
        target = await made.target()
        await made.draft()
        answer = await made.ask(resumed(TRUTH[:num_tokens]))
        assert answer.error is None
        assert answer.tokens == TRUTH[num_tokens:]
        assert answer.completed.usage.num_generated_tokens == 20
        assert answer.completed.usage.num_prompt_tokens == 3
        assert answer.started.num_prompt_tokens == 3
        assert answer.started.model_fingerprint == FINGERPRINT
        # What was there is fed, not decided again.
        assert target.runner.num_fed[0] >= min(3 + num_tokens, 16)


@pytest.mark.parametrize(
    ("tokens", "changes", "reason"),
    [
        (TRUTH, {}, FinishReason.LENGTH),
        (TRUTH[:8], {"stop_token_ids": (TRUTH[7],)}, FinishReason.STOP_TOKEN),
    ],
)
async def test_what_had_ended_is_completed_without_a_worker(tokens, changes, reason):
    async with world(max_waiting=0) as made:
        target = await made.target(num_slots=1)
        answer = await made.ask(resumed(tokens, **changes))
        assert answer.error is None
        assert answer.deltas == []
        assert answer.completed.finish_reason is reason
        assert answer.completed.usage.num_generated_tokens == len(tokens)
        assert target.runner.passes == []


@pytest.mark.parametrize(
    ("asked", "error", "field"),
    [
        (resumed(TRUTH[:3], fingerprint="other"), errors.ResumeMismatchError, None),
        (resumed(TRUTH[:3], fingerprint=""), errors.InvalidRequestError, "resume"),
        (resumed((*TRUTH, 5)), errors.InvalidRequestError, "resume"),
        (resumed((5, VOCAB)), errors.InvalidRequestError, "resume"),
        (
            resumed(TRUTH[:8], stop_token_ids=(TRUTH[3],)),
            errors.InvalidRequestError,
            "resume",
        ),
        (
            replace(request(PROMPT), resume=Resume((), FINGERPRINT, prompt_sha256=b"other")),
            errors.ResumeMismatchError,
            None,
        ),
    ],
)
async def test_what_does_not_fit_is_refused(asked, error, field):
    async with world() as made:
        target = await made.target()
        answer = await made.ask(asked)
        assert type(answer.error) is error
        assert getattr(answer.error, "field", None) == field
        assert target.runner.passes == []


async def test_the_bound_that_was_decided_stays_whatever_targets_there_are_now():
    open_ended = GenerationRequest(TokenPrompt((5,) * 250), has_max_tokens=False)
    async with world() as made:
        await made.target(capacity=252)
        first = await made.ask(open_ended)
        assert first.started.max_tokens == 2
        await made.target("larger", capacity=256)
        resume = Resume(
            first.tokens, FINGERPRINT, first.started.max_tokens, first.started.prompt_sha256
        )
        again = await made.ask(replace(open_ended, resume=resume))
        assert again.completed == replace(
            first.completed,
            speculation=again.completed.speculation,
            timings=again.completed.timings,
        )


async def test_a_batch_takes_up_each_prompt_where_it_was():
    prompts = [(5, 6), (7,), (8,)]
    truths = [continuation(prompt, 12) for prompt in prompts]
    resumes = [
        pb.Resume(token_ids=truths[0][:5], model_fingerprint=FINGERPRINT),
        pb.Resume(),
        pb.Resume(token_ids=(1,), model_fingerprint="other"),
    ]
    async with world() as made:
        await made.target()
        tokens, failed = await _batch(made, prompts, resumes)
    assert tokens == {0: truths[0][5:], 1: truths[1]}
    assert isinstance(failed[2], errors.ResumeMismatchError)


async def test_a_batch_needs_a_resume_for_each_prompt_or_none():
    async with world() as made:
        await made.target()
        with pytest.raises(errors.InvalidRequestError) as caught:
            await _batch(made, [(5,), (6,)], [pb.Resume()])
        assert caught.value.field == "resumes"


async def _batch(made: World, prompts, resumes):
    """Tokens and errors by prompt."""
    import grpc.aio

    from exspec.wire.status import from_call

    batch = pb.GenerateBatchRequest(
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt)) for prompt in prompts],
        sampling=pb.SamplingParams(max_tokens=12),
        resumes=resumes,
    )
    tokens: dict[int, tuple[int, ...]] = {}
    failed = {}
    try:
        async for message in made.stub.GenerateBatch(batch):
            if message.HasField("delta"):
                known = tokens.get(message.index, ())
                tokens[message.index] = (*known, *message.delta.token_ids)
            elif message.HasField("error"):
                failed[message.index] = convert.batch_event_from_message(message).error
    except grpc.aio.AioRpcError as error:
        raise from_call(error) from error
    return tokens, failed


async def test_what_is_resumed_waits_for_its_model_to_come_back():
    async with world() as made:
        await made.target("first", model=facts("one"))
        asked = replace(resumed(TRUTH[:4]), model="two")
        asking = asyncio.create_task(made.ask(asked))
        fresh = await made.ask(replace(asked, resume=None))
        assert isinstance(fresh.error, errors.ModelNotFoundError)
        assert not asking.done()
        second = made.new(Role.TARGET, "second", model=facts("two"))
        await made.start(second)
        answer = await asking
        assert answer.tokens == TRUTH[4:]
        assert answer.started.model == "two"


async def test_sampling_that_is_not_resumed_is_as_before():
    async with world() as made:
        await made.target()
        answer = await made.ask(GenerationRequest(TokenPrompt(PROMPT), SamplingParams(20)))
        assert answer.tokens == TRUTH
        assert answer.started.max_tokens == 20
        assert len(answer.started.prompt_sha256) == 32
