"""Who is served when: windows, batches in flight, priorities, fair turns, prompts in pieces."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from coordinator_world import World, check, request, under_way, world
from fake_worker import FakeWorker, held
from toy import continuation, target_language

from coordinator.scheduler import costs
from exspec.core.cluster import WorkerState
from exspec.core.params import SamplingParams
from exspec.core.rounds import VerifyBatch
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_sampling import sampling_to_message


async def _arrived(made: World, task: asyncio.Task) -> asyncio.Task:
    """Wait until the coordinator knows one more request."""
    num_before = len(made.driver.ledger)
    await made.bell.until(lambda: len(made.driver.ledger) > num_before)
    return task


async def _asked(made: World, prompt, max_tokens: int = 6, priority: int = 0) -> asyncio.Task:
    asked = replace(request(prompt, max_tokens), priority=priority)
    return await _arrived(made, asyncio.create_task(made.ask(asked)))


def _order_of_prompts(made: World) -> list[tuple[int, ...]]:
    """The prompts in the order in which targets were first sent them (short ones, whole)."""
    seen: dict[str, tuple[int, ...]] = {}
    for _, batch in made.sent:
        for entry in batch.entries:
            if isinstance(batch, VerifyBatch) and entry.start == 0:
                seen.setdefault(entry.key.sequence_id, entry.tokens)
    return list(seen.values())


# Windows and batches in flight


@pytest.mark.parametrize("policy", ["exspec", "exspec-paper"])
async def test_a_window_larger_than_the_batch(policy):
    async with world(policy=policy, batch_size=2, window_size=5) as made:
        target = await made.target()
        await made.draft()
        target.runner.gate.clear()
        tasks = [await _asked(made, (i + 5,), 20) for i in range(7)]
        scheduler = made.driver.scheduler
        assert (scheduler.rows_on(target.name), scheduler.num_waiting) == (5, 2)
        assert made.parts.view.status().window_size == 5
        target.runner.gate.set()
        for i, task in enumerate(tasks):
            check(await task, (i + 5,), 20)
        assert max(len(rows) for rows in target.runner.passes) == 2


async def test_a_targets_own_slots_bound_the_window():
    async with world(batch_size=2, window_size=6) as made:
        target = await made.target(num_slots=3)
        target.runner.gate.clear()
        tasks = [await _asked(made, (i + 5,)) for i in range(5)]
        scheduler = made.driver.scheduler
        assert (scheduler.rows_on(target.name), scheduler.num_waiting) == (3, 2)
        target.runner.gate.set()
        for i, task in enumerate(tasks):
            check(await task, (i + 5,), 6)


def _answered(made: World, worker: FakeWorker) -> list[int]:
    """Ids of the answered batches of work, as they come; nothing is falsified."""
    answered: list[int] = []

    def note(reply):
        if reply.results:
            answered.append(reply.batch_id)
        return reply

    worker.tamper = note
    return answered


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("which", ["target", "draft"])
async def test_so_many_batches_are_in_flight_and_they_are_answered_in_order(
    which, in_flight, monkeypatch
):
    monkeypatch.setattr(costs, "FIRST_IN_PLAY", 6)  # so that nothing else is the bound
    async with world(batch_size=1, window_size=6, max_batches_in_flight=in_flight) as made:
        made.patience.hold()
        target = await made.target()
        draft = await made.draft(language=target_language)
        worker = target if which == "target" else draft
        answered = _answered(made, worker)
        worker.runner.gate.clear()
        tasks = [await _asked(made, (i + 5,), 12) for i in range(6)]
        await made.bell.until(lambda: made.in_flight(worker) == in_flight)
        most = in_flight
        handle = made.driver._handle

        def watched(event) -> None:
            nonlocal most
            handle(event)
            most = max(most, made.in_flight(target), made.in_flight(draft))

        made.driver._handle = watched
        worker.runner.gate.set()
        for i, task in enumerate(tasks):
            check(await task, (i + 5,), 12)
        assert most == in_flight
        sent = [batch.batch_id for name, batch in made.sent if name == worker.name]
        assert answered == sent == sorted(sent)
        assert len(sent) > in_flight


# Priorities and turns


async def test_a_request_of_lower_priority_value_goes_before_earlier_ones():
    async with world() as made:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        asked = [(5, 0), (6, 0), (7, 3), (8, -1), (9, 0), (10, -1)]
        tasks = [await _asked(made, (token,), priority=priority) for token, priority in asked]
        target.runner.gate.set()
        for (token, _), task in zip(asked, tasks, strict=True):
            check(await task, (token,), 6)
        assert _order_of_prompts(made) == [(5,), (8,), (10,), (6,), (9,), (7,)]


async def _generate_batch(made: World, prompts) -> dict[int, tuple[int, ...]]:
    """The tokens of every prompt of one batch."""
    message = pb.GenerateBatchRequest(
        prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt)) for prompt in prompts],
        sampling=sampling_to_message(SamplingParams(max_tokens=6)),
    )
    tokens: dict[int, tuple[int, ...]] = {}
    async for reply in made.stub.GenerateBatch(message):
        if reply.HasField("delta"):
            tokens[reply.index] = tokens.get(reply.index, ()) + tuple(reply.delta.token_ids)
    return tokens


async def test_a_single_request_does_not_wait_for_the_whole_batch_before_it():
    prompts = [(i + 5,) for i in range(10)]
    async with world() as made:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        batch = asyncio.create_task(_generate_batch(made, prompts))
        await made.bell.until(lambda: len(made.driver.ledger) == len(prompts))
        single = await _asked(made, (90,))
        other_batch = asyncio.create_task(_generate_batch(made, [(70,), (71,)]))
        await made.bell.until(lambda: len(made.driver.ledger) == len(prompts) + 3)
        target.runner.gate.set()
        check(await single, (90,), 6)
        for asked, task in ((prompts, batch), ([(70,), (71,)], other_batch)):
            tokens = await task
            assert tokens == {i: continuation(prompt, 6) for i, prompt in enumerate(asked)}
        order = _order_of_prompts(made)
        # One was being served, and one more came before: then it is everybody's turn.
        assert order.index((90,)) <= 2
        assert order.index((70,)) <= 3
        assert order.index((71,)) <= 5
        assert [prompt for prompt in order if prompt[0] < 70] == prompts


async def test_prompts_that_were_cancelled_in_the_queue_cost_their_client_no_turn():
    async with world() as made:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        first = await _asked(made, (5,))
        message = pb.GenerateBatchRequest(
            request_id="again",
            prompts=[pb.Prompt(token_ids=pb.TokenIds(ids=[i + 6])) for i in range(8)],
            sampling=sampling_to_message(SamplingParams(max_tokens=6)),
        )
        for _ in range(3):
            call = made.stub.GenerateBatch(message)
            await made.bell.until(lambda: len(made.driver.ledger) == 9)
            call.cancel()
            await made.bell.until(lambda: len(made.driver.ledger) == 1)
        again = made.stub.GenerateBatch(message)
        await made.bell.until(lambda: len(made.driver.ledger) == 9)
        single = await _asked(made, (90,))
        target.runner.gate.set()
        check(await first, (5,), 6)
        check(await single, (90,), 6)
        async for _ in again:
            pass
        assert _order_of_prompts(made)[:3] == [(5,), (6,), (90,)]


# Long prompts


LONG_PROMPT = tuple(5 + i % 80 for i in range(150))


@pytest.mark.parametrize("policy", ["eqspec", "exspec"])
@pytest.mark.parametrize("k", [0, 3])
async def test_a_long_prompt_goes_in_beside_a_running_request_piece_by_piece(
    policy, k, monkeypatch
):
    # One group, whatever passes cost on this machine: in two the prompt would go alone.
    monkeypatch.setattr(costs.Costs, "num_in_play", lambda _costs, _target: 1)
    monkeypatch.setattr(costs.Costs, "num_groups", lambda _costs, _target, _rows, _limits: 1)
    limits = {"max_mixed_prefill_tokens": 8, "max_prefill_tokens": 64}
    async with world(policy=policy, num_speculative_tokens=k, **limits) as made:
        made.patience.hold()
        target = await made.target(capacity=1600)
        await made.draft(capacity=1600)
        running = await under_way(made, request(max_tokens=1500))
        (running_id,) = made.driver.ledger.sequence_ids
        long = await _asked(made, LONG_PROMPT, 6)
        (long_id,) = set(made.driver.ledger.sequence_ids) - {running_id}
        check(await long, LONG_PROMPT, 6)
        check(await running, max_tokens=1500)
        shared = [
            {entry.key.sequence_id: entry for entry in batch.entries}
            for _, batch in made.sent
            if isinstance(batch, VerifyBatch)
        ]
        pieces = [entries for entries in shared if long_id in entries]
        pieces = [entries for entries in pieces if entries[long_id].start < len(LONG_PROMPT)]
        assert sum(len(entries[long_id].tokens) for entries in pieces) == len(LONG_PROMPT)
        assert {len(entries[long_id].tokens) for entries in pieces[:-1]} == {8}
        # The running request decides something in every pass that feeds a piece.
        assert all(
            running_id in entries and not entries[running_id].is_prefill for entries in pieces
        )
        assert max(target.runner.num_fed) <= 8 + 1 + k


async def test_alone_it_goes_in_larger_pieces():
    limits = {"max_mixed_prefill_tokens": 8, "max_prefill_tokens": 64}
    async with world(**limits) as made:
        target = await made.target()
        check(await made.generate(LONG_PROMPT, 6), LONG_PROMPT, 6)
        assert target.runner.num_fed[:3] == [64, 64, 22]


async def test_the_drafts_own_prompt_goes_in_pieces_too():
    """It may not hold up the drafts of others for longer than a piece takes."""
    async with world(max_mixed_prefill_tokens=8) as made:
        made.patience.hold()
        await made.target(capacity=400)
        draft = await made.draft(capacity=400)
        running = await under_way(made, request(max_tokens=300))
        answer = await made.generate(LONG_PROMPT, 60)
        check(answer, LONG_PROMPT, 60)
        check(await running, max_tokens=300)
        assert answer.completed.speculation.num_draft_tokens > 0
        longest = max(len(row.tokens) for rows in draft.runner.passes for row in rows)
        assert longest <= 8 + 2


async def test_a_client_that_leaves_while_the_draft_worker_lacks_its_prompt_harms_nobody(caplog):
    limits = {"max_mixed_prefill_tokens": 8, "max_batches_in_flight": 1}
    async with world(batch_size=1, window_size=4, **limits) as made:
        made.patience.hold()
        target = await made.target()
        draft = await made.draft()
        draft.runner.gate.clear()
        other = await _asked(made, (5,), 30)
        await made.bell.until(lambda: made.in_flight(draft) == 1)
        leaving = await under_way(made, request(LONG_PROMPT[:60], max_tokens=100))
        await held(target)
        leaving.cancel()
        await made.bell.until(lambda: len(made.driver.ledger) == 1)
        draft.runner.gate.set()
        await made.bell.until(lambda: not made.in_flight(draft))
        target.runner.gate.set()
        check(await other, (5,), 30)
        await asyncio.gather(leaving, return_exceptions=True)
        assert made.state(draft) is WorkerState.READY
    assert "link.failed" not in caplog.text
