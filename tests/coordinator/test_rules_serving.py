"""Rules through the whole path: whom they are sent to and when, seeds, and what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from coordinator_world import Answer, World, check, request, under_way, world
from fake_worker import held
from ruled import PROMPT, entries, sampled
from toy import continuation, facts
from toy_tokenizers import byte_level

from exspec.core import errors
from exspec.core.acceptance import FinishReason
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind, derive_seed
from exspec.core.generation import Completed, Delta, GenerationRequest, Resume, TokenPrompt
from exspec.core.models import GenerationDefaults, TokenizerAssets
from exspec.core.params import SamplingParams
from exspec.v1 import generation_pb2 as pb
from exspec.wire import convert_generation as convert
from exspec.wire.status import from_call

# What workers are sent


async def test_rules_come_with_the_first_token_of_a_log_and_with_no_other():
    async with world() as made:
        await made.target()
        await made.draft()
        answer = await made.ask(request(temperature=0.5, seed=7))
        assert answer.tokens == sampled(temperature=0.5, seed=7)
        for worker in ("target", "draft"):
            sent = entries(made, worker)
            assert len(sent) > 2
            for entry in sent:
                assert (entry.rules is not None) is (entry.start == 0)
            assert {e.rules for e in sent if e.rules} == {ChoiceRules(3, temperature=0.5, seed=7)}


async def test_plain_requests_carry_no_rules():
    async with world() as made:
        await made.target()
        await made.draft()
        check(await made.ask(request(temperature=0.0, top_p=0.5, seed=9, ignore_eos=True)))
        assert {entry.rules for entry in entries(made, "target")} == {None}
        assert {entry.rules for entry in entries(made, "draft")} == {None}


async def test_a_draft_worker_is_not_asked_for_what_only_the_target_reports():
    async with world() as made:
        await made.target()
        await made.draft()
        answer = await made.ask(request(logprobs=1, prompt_logprobs=1))
        check(answer)
        assert {entry.rules for entry in entries(made, "draft")} == {None}
        await made.ask(request(logprobs=1, temperature=1.0, seed=3))
        assert ChoiceRules(3, temperature=1.0, seed=3) in {e.rules for e in entries(made, "draft")}


async def test_another_target_is_told_the_rules_with_the_log():
    async with world() as made:
        first = await made.target("first", capacity=4000)
        await made.draft(capacity=4000)
        asking = await under_way(made, request(max_tokens=600, temperature=0.7, seed=5))
        await made.target("second", capacity=4000)
        await made.forget(first)
        answer = await asking
        assert answer.error is None
        assert answer.tokens == sampled(number=600, temperature=0.7, seed=5)
        moved = entries(made, "second")
        assert [entry.start == 0 for entry in moved[:2]] == [True, False]
        assert moved[0].rules == ChoiceRules(3, temperature=0.7, seed=5)


# Seeds and several completions


@pytest.mark.parametrize("k", [0, 1, 4])
async def test_the_same_seed_gives_the_same_tokens(k):
    async with world() as made:
        await made.target()
        await made.draft()
        asked = replace(
            request(k=k, temperature=0.9, seed=2**64 - 1, min_tokens=3, banned_token_ids=(9,)),
        )
        answers = await asyncio.gather(*(made.ask(asked) for _ in range(3)))
        for answer in answers:
            assert answer.started.seed == 2**64 - 1
            assert answer.tokens == sampled(
                temperature=0.9, seed=2**64 - 1, min_tokens=3, banned_token_ids=(9,)
            )


async def test_a_drawn_seed_is_told_and_gives_the_same_again():
    async with world() as made:
        await made.target()
        first = await made.ask(request(temperature=1.0))
        other = await made.ask(request(temperature=1.0))
        assert first.started.seed != other.started.seed
        again = await made.ask(request(temperature=1.0, seed=first.started.seed))
        assert again.tokens == first.tokens == sampled(temperature=1.0, seed=first.started.seed)


async def batch(made: World, message: pb.GenerateBatchRequest) -> dict[int, Answer]:
    """The answers by index."""
    answers: dict[int, Answer] = {}
    try:
        async for item in made.stub.GenerateBatch(message):
            answer = answers.setdefault(item.index, Answer())
            match convert.batch_event_from_message(item):
                case Delta() as delta:
                    answer.deltas.append(delta)
                case Completed() as completed:
                    answer.completed = completed
                case errors_or_start if item.HasField("started"):
                    answer.started = errors_or_start
                case failed:
                    answer.error = failed.error
    except grpc.aio.AioRpcError as error:
        raise from_call(error) from error
    return answers


def batch_message(prompts=((5, 6), (7,)), **fields: Any) -> pb.GenerateBatchRequest:
    """Several prompts of token ids, ten tokens each."""
    sampling = pb.SamplingParams(max_tokens=10, temperature=1.0)
    return pb.GenerateBatchRequest(
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt)) for prompt in prompts],
        **{"sampling": sampling, "n": 3, **fields},
    )


@pytest.mark.parametrize("seed", [None, 12])
async def test_completions_of_a_prompt_are_sequences_of_their_own_with_derived_seeds(seed):
    message = batch_message()
    if seed is not None:
        message.sampling.seed = seed
    async with world() as made:
        await made.target()
        await made.draft()
        answers = await batch(made, message)
    assert sorted(answers) == list(range(6))
    first = answers[0].started.seed
    assert seed in (None, first)
    for index, answer in answers.items():
        assert answer.started.seed == derive_seed(first, index)
        prompt = ((5, 6), (7,))[index // 3]
        rules = {"temperature": 1.0, "seed": answer.started.seed}
        assert answer.tokens == sampled(prompt, 10, **rules)
    assert len({answer.tokens for answer in answers.values()}) == 6


async def test_a_greedy_batch_has_no_seed_but_the_one_it_states():
    message = batch_message(sampling=pb.SamplingParams(max_tokens=10))
    async with world() as made:
        await made.target()
        answers = await batch(made, message)
        assert {answer.started.seed for answer in answers.values()} == {0}
        assert answers[3].tokens == continuation((7,), 10)
        message.sampling.seed = 4
        answers = await batch(made, message)
        assert answers[3].started.seed == derive_seed(4, 3)
        assert answers[3].tokens == continuation((7,), 10)


async def test_a_batch_that_is_resumed_has_the_seeds_it_started_with():
    async with world() as made:
        await made.target()
        whole = await batch(made, batch_message(n=1))
        started = [whole[i].started for i in range(2)]
        resumes = [
            pb.Resume(
                token_ids=whole[0].tokens[:4],
                model_fingerprint=started[0].model_fingerprint,
                seed=started[0].seed,
            ),
            pb.Resume(seed=started[1].seed),
        ]
        rest = await batch(made, batch_message(n=1, resumes=resumes))
        assert (rest[0].tokens, rest[1].tokens) == (whole[0].tokens[4:], whole[1].tokens)
        resumes[0].ClearField("seed")
        refused = await batch(made, batch_message(n=1, resumes=resumes))
        assert "needs the seed" in refused[0].error.message
        assert refused[1].tokens == whole[1].tokens


async def test_a_sampled_generation_is_resumed_anywhere():
    truth = sampled(temperature=1.0, seed=77)
    async with world() as made:
        await made.target()
        await made.draft()
        for cut in (1, 8, 19):
            resume = Resume(truth[:cut], facts().fingerprint, seed=77)
            answer = await made.ask(replace(request(temperature=1.0), resume=resume))
            assert answer.tokens == truth[cut:]
            assert answer.started.seed == 77


# The model's advice


@pytest.mark.parametrize(("setting", "temperature"), [("auto", 0.8), ("none", 0.0)])
async def test_the_models_advice_is_taken_unless_told_otherwise(setting, temperature):
    async with world(generation_config=setting) as made:
        await made.target(model=facts(generation=GenerationDefaults(temperature=0.8)))
        answer = await made.ask(request(seed=4))
        expected = sampled(temperature=temperature, seed=4)
        assert answer.tokens == (expected if temperature else continuation(PROMPT, 20))
        check(await made.ask(request(seed=4, temperature=0.0)))


# Trouble


async def test_a_request_whose_rules_leave_no_token_ends_alone_with_the_field_at_fault():
    truth = continuation(PROMPT, 20)
    stuck = request(allowed_token_ids=(truth[0],), bad_words_ids=((truth[0], truth[0]),))
    async with world() as made:
        await made.target()
        await made.draft()
        answer, other = await asyncio.gather(made.ask(stuck), made.generate())
        check(other)
        assert answer.tokens == truth[:1]
        assert type(answer.error) is errors.InvalidRequestError
        assert answer.error.field == "allowed_token_ids"
        assert "no token is left to choose at position 4" in answer.error.message
        assert answer.error.request_id
        check(await made.generate())


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"banned_token_ids": (97,)}, "banned_token_ids"),
        ({"logit_bias": ((97, 1.0),)}, "logit_bias"),
        ({"stop": ("x",)}, "stop"),
        ({"min_tokens": 2, "allowed_token_ids": (5,), "stop_token_ids": (5,)}, "min_tokens"),
    ],
)
async def test_what_is_refused_touches_nobody(sampling, field):
    async with world() as made:
        await made.target()
        refused, other = await asyncio.gather(made.ask(request(**sampling)), made.generate())
        assert isinstance(refused.error, errors.InvalidRequestError)
        assert refused.error.field == field
        check(other)


async def test_a_grammar_that_is_refused_or_slow_holds_nobody_up(monkeypatch):
    tried, answered = threading.Event(), threading.Event()

    def check_slowly(grammar: Grammar) -> None:
        tried.set()
        assert answered.wait(30)
        raise errors.InvalidRequestError(f"{grammar.text} is none", field="structured")

    monkeypatch.setattr("coordinator.service.check_grammar", check_slowly)
    model = facts(stop_token_ids=(1,))
    async with world() as made:
        await made.target(model=model, tokenizer=TokenizerAssets(byte_level().to_str()))
        asked = request(structured=Grammar(GrammarKind.REGEX, "x"))
        asking = asyncio.create_task(made.ask(asked))
        assert await asyncio.to_thread(tried.wait, 10)
        for _ in range(8):
            check(await made.generate())
        answered.set()
        answer = await asking
        assert (answer.error.field, answer.error.message) == ("structured", "x is none")
        assert answer.started is None


async def test_a_grammar_that_workers_do_not_take_ends_that_request_alone(monkeypatch):
    monkeypatch.setattr("coordinator.service.check_grammar", lambda _: None)
    model = facts(stop_token_ids=(1,))
    async with world() as made:
        await made.target(model=model, tokenizer=TokenizerAssets(byte_level().to_str()))
        asked = request(structured=Grammar(GrammarKind.REGEX, "x"))
        answer, other = await asyncio.gather(made.ask(asked), made.generate())
        check(other)
        assert (answer.error.field, answer.deltas) == ("structured", [])


async def test_min_tokens_beyond_what_the_context_leaves_are_refused():
    asked = GenerationRequest(
        TokenPrompt((5,) * 250), SamplingParams(min_tokens=7), has_max_tokens=False
    )
    async with world() as made:
        await made.target()
        answer = await made.ask(asked)
        assert answer.error.field == "min_tokens"
        assert "at most 6" in answer.error.message
        fits = replace(asked, sampling=SamplingParams(min_tokens=6))
        assert (await made.ask(fits)).completed.finish_reason is FinishReason.LENGTH


async def test_ten_thousand_stop_strings_are_refused_and_the_others_go_on():
    message = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=PROMPT)))
    message.sampling.stop.extend(["x"] * 10_000)
    async with world() as made:
        target = await made.target()
        target.runner.gate.clear()
        asking = asyncio.create_task(made.generate())
        await held(target)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in made.stub.Generate(message):
                pass
        error = from_call(caught.value)
        assert isinstance(error, errors.InvalidRequestError)
        assert error.field == "stop"
        assert "at most 64 strings, got 10000" in error.message
        target.runner.gate.set()
        check(await asking)


async def test_a_field_this_version_does_not_know_is_refused():
    raw = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=PROMPT)))
    newer = pb.GenerateRequest.FromString(raw.SerializeToString() + b"\xe8\x04\x01")
    async with world() as made:
        await made.target()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in made.stub.Generate(newer):
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "GenerateRequest has a field number 77" in caught.value.details()


# Text


async def test_text_ends_after_its_stop_string_if_that_is_asked_for():
    """The toys speak bytes here: id and byte are the same."""
    tokenizer = TokenizerAssets(byte_level().to_str())
    truth = bytes(continuation(PROMPT, 40))
    stop = truth[20:23].decode()
    end = truth.index(stop.encode()) + 3
    async with world() as made:
        await made.target(tokenizer=tokenizer)
        await made.draft()
        for is_included in (False, True):
            asked = request(max_tokens=40, stop=(stop,), include_stop_str_in_output=is_included)
            answer = await made.ask(asked)
            assert answer.text.encode() == truth[: end if is_included else end - 3]
            assert answer.tokens == tuple(truth[:end])
            assert answer.completed.stop_string == stop
            assert answer.completed.finish_reason is FinishReason.STOP_STRING
