"""A coordinator killed in mid-generation and started again: nobody can tell but by the time.

The workers stay; they forget what the dead coordinator had given them. Tokens are drawn: what goes
on does so with the seed, the counts and the logprobs of before.
"""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from exspec import AsyncClient, Client, Delta, GenerationResult, InvalidRequestError
from exspec.cli.cluster import LocalCluster
from exspec.core.generation import Completed, Started
from tests.e2e.conftest import plan

PROMPTS = ("a request that is under way", "Zwölf Boxkämpfer 🦊 jagen", "1 2 3 1 2 3 1 2", "x")
LENGTH = 110
SHORT = 16
OPTIONS = {
    "max_tokens": LENGTH, "ignore_eos": True, "temperature": 0.8, "top_p": 0.95,
    "frequency_penalty": 0.2, "logprobs": 1, "prompt_logprobs": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(make_cluster, target_dir, noise_dir):
    """Fewer slots than sequences, so that one that is not freed is missed.

    A coordinator that is told to stop has no patience with what is under way.
    """
    flags = ("--grace-seconds", "1")
    cluster = make_cluster(plan(target_dir, noise_dir, max_num_seqs=2, coordinator_flags=flags))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def undisturbed(cluster) -> list[GenerationResult]:
    """The results without any loss."""
    with Client(cluster.address) as client:
        results = client.generate_batch(PROMPTS, **OPTIONS)
    assert all(isinstance(result, GenerationResult) for result in results)
    return [result for result in results if isinstance(result, GenerationResult)]


class Loss:
    """Kills the coordinator once, when enough tokens were seen, and starts it again."""

    def __init__(self, cluster: LocalCluster, num_tokens: int) -> None:
        self._cluster = cluster
        self._num_tokens = num_tokens
        self._restarting: threading.Thread | None = None

    def note(self, event: object) -> None:
        """An event was seen."""
        if isinstance(event, Delta):
            self._num_tokens -= len(event.token_ids)
        if self._num_tokens <= 0 and self._restarting is None:
            self._cluster.kill("target-0", signal.SIGSTOP)  # the end may not come first
            self._cluster.kill("coordinator")
            self._restarting = threading.Thread(target=self._restart)
            self._restarting.start()

    def done(self) -> None:
        """It happened, and is over."""
        assert self._restarting is not None
        self._restarting.join(60)

    def _restart(self) -> None:
        self._cluster.kill("target-0", signal.SIGCONT)
        self._cluster.restart_coordinator()


def same(result: object, expected: GenerationResult) -> None:
    """All that does not depend on time is equal."""
    assert isinstance(result, GenerationResult), result
    for field in ("text", "token_ids", "finish_reason", "usage", "stop_string", "model", "seed"):
        assert getattr(result, field) == getattr(expected, field)
    for field in ("logprobs", "prompt_logprobs"):
        ours, theirs = getattr(result, field), getattr(expected, field)
        assert [one.token_id for one in ours] == [one.token_id for one in theirs]
        assert [one.logprob for one in ours] == pytest.approx([one.logprob for one in theirs])
    assert len(result.logprobs) == len(result.token_ids)


def all_slots_are_free(client: Client, undisturbed: list[GenerationResult]) -> None:
    """The workers hold nothing of before: as many as fit run at once, and go as they went."""
    assert all(not worker.num_sequences for worker in client.cluster_status().workers)
    options = {**OPTIONS, "max_tokens": SHORT, "seed": undisturbed[0].seed}
    for result, expected in zip(
        client.generate_batch(PROMPTS, **options), undisturbed, strict=True
    ):
        assert isinstance(result, GenerationResult), result
        assert result.token_ids == expected.token_ids[:SHORT]
        assert result.num_resumes == 0


@pytest.mark.parametrize("num_tokens", [0, 1, 40, 80])
def test_a_stream_goes_on(cluster, undisturbed, num_tokens):
    loss = Loss(cluster, num_tokens)
    with Client(cluster.address) as client:
        kinds = []
        with client.stream(PROMPTS[0], **OPTIONS) as stream:
            for event in stream:
                kinds.append(type(event))
                loss.note(event)
            result = stream.final()
        loss.done()
        same(result, client.generate(PROMPTS[0], **OPTIONS, seed=result.seed))
        assert (kinds.count(Started), kinds.count(Completed)) == (1, 1)
        assert kinds[0] is Started
        assert kinds[-1] is Completed
        if num_tokens < 2:
            assert result.num_resumes == 1
        all_slots_are_free(client, undisturbed)


async def test_asynchronous_streams_go_on_side_by_side(cluster, undisturbed):
    loss = Loss(cluster, 60)

    async def read(client: AsyncClient, prompt: str, seed: int) -> GenerationResult:
        async with client.stream(prompt, **OPTIONS, seed=seed) as stream:
            async for event in stream:
                loss.note(event)
            return await stream.final()

    async with AsyncClient(cluster.address) as client:
        seeds = [expected.seed for expected in undisturbed]
        results = await asyncio.gather(*map(read, [client] * len(seeds), PROMPTS, seeds))
    await asyncio.to_thread(loss.done)
    for result, expected in zip(results, undisturbed, strict=True):
        same(result, expected)
    with Client(cluster.address) as client:
        all_slots_are_free(client, undisturbed)


def test_a_batch_resumes_what_is_left_of_it(cluster, undisturbed):
    loss = Loss(cluster, 200)
    options = {**OPTIONS, "seed": undisturbed[0].seed}
    with Client(cluster.address) as client:
        with client.stream_batch([*PROMPTS, ""], **options) as stream:
            for _, event in stream:
                loss.note(event)
            *results, refused = stream.final()
        loss.done()
        assert isinstance(refused, InvalidRequestError)
        for result, expected in zip(results, undisturbed, strict=True):
            same(result, expected)
        all_slots_are_free(client, undisturbed)


def test_a_coordinator_that_is_told_to_stop_is_resumed_after_it_too(cluster, undisturbed):
    def come_back() -> None:
        """Once it has ended; until then the end may not come."""
        cluster.restart_coordinator()
        cluster.kill("target-0", signal.SIGCONT)

    with Client(cluster.address) as client:
        with client.stream(PROMPTS[1], **OPTIONS, seed=undisturbed[1].seed) as stream:
            events = iter(stream)
            next(events)
            cluster.kill("target-0", signal.SIGSTOP)
            cluster.kill("coordinator", signal.SIGTERM)
            returning = threading.Thread(target=come_back)
            returning.start()
            result = stream.final()
        returning.join()
        same(result, undisturbed[1])
        assert result.num_resumes == 1
