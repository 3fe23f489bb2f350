"""Several models in one cluster: each as if it were alone, whatever happens to another."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest
from coordinator_world import World, other_facts, world
from fake_worker import FakeWorker, held
from toy import continuation, draft_language, target_language
from toy_tokenizers import byte_level, metaspace

from coordinator.scheduler.replay import replay_lines
from coordinator.traces import TraceFiles
from exspec.core import errors
from exspec.core.cluster import WorkerState
from exspec.core.generation import GenerationRequest, TextPrompt, TokenPrompt
from exspec.core.ids import Role
from exspec.core.models import TokenizerAssets
from exspec.core.params import SamplingParams
from exspec.v1 import generation_pb2


def second_language(context):
    """Another model, of the same size."""
    return target_language((*context, 3))


def second_draft_language(context):
    """Agrees with it most times."""
    return draft_language((*context, 3))


A = other_facts(name="a", fingerprint="a" * 16, tokenizer_sha256="a" * 64)
B = other_facts(name="b", fingerprint="b" * 16, tokenizer_sha256="b" * 64)
LANGUAGES = {"a": (target_language, draft_language), "b": (second_language, second_draft_language)}
MODELS = {"a": A, "b": B}


async def _serve(made: World, model: str, **changes) -> tuple[FakeWorker, FakeWorker]:
    """A target and a draft worker of one model."""
    language, guess = LANGUAGES[model]
    facts = MODELS[model]
    target = await made.target(f"t-{model}", language=language, model=facts, **changes)
    draft = await made.draft(f"d-{model}", language=guess, model=facts)
    return target, draft


def _of(model: str, prompt=(11, 0, 2), max_tokens=20) -> GenerationRequest:
    return GenerationRequest(
        TokenPrompt(tuple(prompt)), SamplingParams(max_tokens=max_tokens), model=model
    )


def _pool_status(made: World, name: str):
    return next(pool for pool in made.parts.view.status().pools if pool.name == name)


async def test_two_models_under_load_answer_as_each_does_alone():
    prompts = [tuple(5 + (i * 7 + j) % 80 for j in range(1 + i % 9)) for i in range(20)]
    async with world(batch_size=3) as made:
        await _serve(made, "a")
        await _serve(made, "b")
        asked = [(model, prompt) for prompt in prompts for model in ("a", "b")]
        answers = await asyncio.gather(*(made.ask(_of(*pair, 25)) for pair in asked))
        for (model, prompt), answer in zip(asked, answers, strict=True):
            assert answer.tokens == continuation(prompt, 25, LANGUAGES[model][0])
            assert answer.started.model == model
            assert answer.completed.speculation.num_accepted_tokens > 0
        status = made.parts.view.status()
        assert status.model == "a, b"
        assert [(pool.name, pool.is_ready) for pool in status.pools] == [("a", True), ("b", True)]
        assert [pool.totals.num_generated_tokens for pool in status.pools] == [500, 500]
        assert status.totals.num_generated_tokens == 1000
        assert {w.worker.worker_id: w.pool for w in status.workers} == {
            "t-a": "a", "d-a": "a", "t-b": "b", "d-b": "b",
        }  # fmt: skip


async def test_each_model_has_its_own_tokenizer():
    tokenizers = {"a": byte_level(), "b": metaspace()}
    async with world() as made:
        for name, tokenizer in tokenizers.items():
            facts = other_facts(name=name, fingerprint=name)
            assets = TokenizerAssets(tokenizer.to_str())
            worker = made.new(Role.TARGET, f"t-{name}", model=facts, tokenizer=assets)
            await made.start(worker)
            await made.until_state(worker, WorkerState.READY)
        for name, tokenizer in tokenizers.items():
            asked = GenerationRequest(TextPrompt("AB 42"), SamplingParams(max_tokens=9), model=name)
            answer = await made.ask(asked)
            ids = tokenizer.encode("AB 42").ids
            assert answer.started.num_prompt_tokens == len(ids)
            assert answer.tokens == continuation(ids, 9)
            listed = await made.stub.Tokenize(
                generation_pb2.TokenizeRequest(
                    model=name, prompt=generation_pb2.Prompt(text="AB 42")
                )
            )
            assert list(listed.token_ids) == ids


async def test_a_request_must_say_which_of_several_models_it_means():
    async with world() as made:
        await made.target("t-a", model=A)
        assert (await made.generate()).tokens == continuation((11, 0, 2), 20)
        await made.target("t-b", model=B, language=second_language)
        unnamed = (await made.generate()).error
        assert type(unnamed) is errors.InvalidRequestError
        assert (unnamed.field, "a, b" in unnamed.message) == ("model", True)
        unknown = (await made.ask(_of("c"))).error
        assert type(unknown) is errors.ModelNotFoundError
        assert "'c'" in unknown.message
        assert "a, b" in unknown.message
        models = (await made.stub.ListModels(generation_pb2.ListModelsRequest())).models
        assert [model.name for model in models] == ["a", "b"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_model_that_loses_its_target_does_not_touch_another(is_killed):
    async with world(unavailable_seconds=0.3) as made:
        target, _ = await _serve(made, "a")
        await _serve(made, "b")
        rings = asyncio.Event()
        asking = {
            model: [
                asyncio.create_task(made.ask(_of(model, (7, i), 150), rings.set)) for i in range(3)
            ]
            for model in ("a", "b")
        }
        await rings.wait()
        if is_killed:
            await held(target)
            await made.forget(target)
        else:
            made.workers.remove(target)
            await target.leave()
        for i, answer in enumerate(await asyncio.gather(*asking["b"])):
            assert answer.tokens == continuation((7, i), 150, second_language)
        for answer in await asyncio.gather(*asking["a"]):
            assert answer.error is None or isinstance(answer.error, errors.UnavailableError)
        assert not _pool_status(made, "a").is_ready
        assert _pool_status(made, "b").is_ready
        assert made.parts.view.status().is_ready
        # Its facts stay: requests wait their time, and a target that comes back serves them.
        assert isinstance((await made.ask(_of("a"))).error, errors.UnavailableError)
        asked = asyncio.create_task(made.ask(_of("a")))
        await made.target("again", model=A)
        assert (await asked).tokens == continuation((11, 0, 2), 20)


# Who works for whom


async def test_a_draft_worker_goes_to_the_model_it_names():
    async with world() as made:
        named = made.new(Role.DRAFT, "d", model=A, draft_for="a2")
        await made.start(named)
        await made.until_state(named, WorkerState.JOINING)
        await made.target("t1", model=A)
        assert made.reason(named) == "waits for a target of 'a2'"
        await made.target("t2", model=other_facts(name="a2", tokenizer_sha256="a" * 64))
        await made.until_state(named, WorkerState.READY)
        assert (_pool_status(made, "a").num_drafts, _pool_status(made, "a2").num_drafts) == (0, 1)


async def test_a_draft_worker_that_does_not_fit_the_model_it_names_is_refused():
    async with world() as made:
        await made.target("t-a", model=A)
        await made.target("t-b", model=B, language=second_language)
        draft = made.new(Role.DRAFT, "d", model=A, draft_for="b")
        with pytest.raises(errors.IncompatibleWorkerError, match=r"'a'.*'b'"):
            await (await made.start(draft))
        stranger = made.new(Role.DRAFT, "s", model=other_facts(name="s", tokenizer_sha256="c" * 64))
        with pytest.raises(errors.IncompatibleWorkerError, match=r"'a'.*; .*'b'"):
            await (await made.start(stranger))
        assert made.state(draft) is made.state(stranger) is WorkerState.REFUSED


async def test_draft_workers_that_name_no_model_go_where_there_are_fewest_per_target():
    anything = other_facts(name="ngram", vocab_size=0, tokenizer_size=0, tokenizer_sha256="")
    async with world() as made:
        await made.target("t-a", model=A)
        await made.target("t-b", model=B, language=second_language)
        await made.target("t-b2", model=B, language=second_language)
        for i in range(6):
            await made.draft(f"d{i}", model=anything)
        assert (_pool_status(made, "a").num_drafts, _pool_status(made, "b").num_drafts) == (2, 4)


async def test_every_pool_records_a_trace_of_its_own(tmp_path):
    path = tmp_path / "trace"
    with contextlib.ExitStack() as stack:
        async with world(traces=TraceFiles(str(path), stack)) as made:
            await _serve(made, "a")
            await _serve(made, "b")
            await asyncio.gather(*(made.ask(_of(model)) for model in ("a", "b") * 3))
    for name in (path, tmp_path / "trace.2"):
        lines = name.read_text().splitlines()
        assert len(lines) > 5
        replay_lines(lines)


def test_a_trace_that_cannot_be_written_does_not_keep_a_model_out(tmp_path):
    (tmp_path / "trace.2").mkdir()
    with contextlib.ExitStack() as stack:
        traces = TraceFiles(str(tmp_path / "trace"), stack)
        assert isinstance(traces.open("a"), io.TextIOBase)
        assert traces.open("b") is None
        assert isinstance(traces.open("c"), io.TextIOBase)
    with contextlib.ExitStack() as stack, pytest.raises(OSError, match="trace"):
        TraceFiles(str(tmp_path / "nowhere" / "trace"), stack)


async def test_requests_before_the_first_target_wait_for_any():
    async with world() as made:
        asking = [asyncio.create_task(made.ask(_of(name))) for name in ("a", "b")]
        await asyncio.sleep(0)
        await made.target("t-a", model=A)
        assert (await asking[0]).tokens == continuation((11, 0, 2), 20)
        assert isinstance((await asking[1]).error, errors.ModelNotFoundError)
