"""Draft workers that are late: nobody waits longer than a batch's patience, and a late answer is
used for nothing but what the worker holds. Nothing here is late by the clock: see `Patience`.
"""

from __future__ import annotations

import asyncio

import pytest
from coordinator_world import World, check, request, under_way, world
from fake_worker import FakeWorker, held

from coordinator.scheduler import costs
from coordinator.scheduler.rows import Phase
from exspec.core.cluster import WorkerState
from exspec.core.rounds import DraftBatch, VerifyBatch

LONG = 150
PROMPTS = [(11, 0, 2), (7,)]


def _stop_after(made: World, worker: FakeWorker, num_passes: int) -> None:
    """Hold the worker up at its pass after `num_passes` more."""
    stop = len(worker.runner.passes) + num_passes

    def hold() -> None:
        if len(worker.runner.passes) == stop:
            worker.runner.gate.clear()
            made.bell.ring()

    worker.runner.on_pass = hold


async def _asked(made: World, prompt: tuple[int, ...]) -> asyncio.Task:
    """A request that has arrived."""
    num_before = len(made.driver.ledger)
    task = asyncio.create_task(made.generate(prompt, LONG))
    await made.bell.until(lambda: len(made.driver.ledger) > num_before)
    return task


def _drafts(made: World, first: int, name: str = "draft") -> list[DraftBatch]:
    """Batches for a draft worker among those sent from the `first` on."""
    return [batch for worker, batch in made.sent[first:] if worker == name]


def _verifies(made: World, first: int, last: int | None = None) -> list[VerifyBatch]:
    return [batch for _, batch in made.sent[first:last] if isinstance(batch, VerifyBatch)]


@pytest.mark.parametrize("policy", ["eqspec", "exspec"])
async def test_a_slow_draft_worker_stalls_nobody_and_its_late_answer_only_says_what_it_holds(
    policy,
):
    async with world(policy=policy) as made:
        made.patience.hold()
        target = await made.target()
        draft = await made.draft()
        target.runner.gate.clear()
        asking = [await _asked(made, prompt) for prompt in PROMPTS]
        target.runner.gate.set()
        await held(draft)
        first = len(made.sent)
        _stop_after(made, target, 12)
        made.patience.run_out()
        # All rows go on without drafts, and nothing more is asked of the worker.
        await made.bell.until(lambda: not target.runner.gate.is_set())
        num_overdue = made.parts.view.status().totals.num_overdue_drafts
        assert num_overdue == made.in_flight(draft) > 0
        assert _drafts(made, first) == []
        plain = [e for batch in _verifies(made, first)[1:] for e in batch.entries]
        assert {entry.draft_tokens for entry in plain} == {()}
        assert len({entry.key.sequence_id for entry in plain}) == 2

        # The late answer comes in the middle of a round: it is not verified.
        late = [flight.batch for flight in made.driver._in_flight.values()]
        held_lengths = {
            entry.key.sequence_id: entry.end
            for batch in late
            if isinstance(batch, DraftBatch)
            for entry in batch.entries
        }
        draft.runner.gate.set()
        await made.bell.until(lambda: not made.in_flight(draft))
        ledger = made.driver.ledger
        assert all(not ledger._sequences[name].staged.tokens for name in held_lengths)
        answered = len(made.sent)
        target.runner.on_pass = lambda: None
        target.runner.gate.set()
        for prompt, task in zip(PROMPTS, asking, strict=True):
            answer = await task
            check(answer, prompt, LONG)
            assert answer.completed.speculation.num_draft_tokens > 0

        # Drafting goes on from what the worker holds.
        again = {}
        for batch in _drafts(made, answered):
            for entry in batch.entries:
                again.setdefault(entry.key.sequence_id, entry.start)
        assert {name: again[name] for name in held_lengths} == held_lengths
        totals = made.parts.view.status().totals
        assert totals.num_overdue_drafts == num_overdue
        assert totals.num_draft_failures == 0
        assert totals.num_plain_row_rounds >= 20


async def test_rows_of_another_draft_worker_keep_drafting():
    async with world(batch_size=2) as made:  # so that each draft worker's share is one row
        made.patience.hold()
        await made.target()
        slow = await made.draft("slow")
        quick = await made.draft("quick")
        slow.runner.gate.clear()
        asking = [await _asked(made, PROMPTS[0])]
        await made.bell.until(lambda: made.in_flight(slow))
        asking.append(await _asked(made, PROMPTS[1]))
        first = len(made.sent)
        made.patience.run_out()
        for prompt, task in zip(PROMPTS, asking, strict=True):
            check(await task, prompt, LONG)
        assert not slow.runner.passes
        assert _drafts(made, first, "slow") == []
        assert quick.runner.passes
        drafted = [e for b in _verifies(made, first) for e in b.entries if e.draft_tokens]
        assert len(drafted) > 10
        assert len({entry.key.sequence_id for entry in drafted}) == 1
        slow.runner.gate.set()


async def test_a_new_request_is_given_a_draft_worker_that_answers():
    async with world() as made:
        made.patience.hold()
        await made.target()
        slow = await made.draft("slow")
        quick = await made.draft("quick")
        slow.runner.gate.clear()
        first = await _asked(made, PROMPTS[0])
        await made.bell.until(lambda: made.in_flight(slow))
        made.patience.run_out()
        second = await made.generate(PROMPTS[1], LONG)
        check(second, PROMPTS[1], LONG)
        assert second.completed.speculation.num_draft_tokens > 0
        assert quick.runner.passes
        check(await first, PROMPTS[0], LONG)
        slow.runner.gate.set()


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_requests_that_come_while_a_draft_worker_hangs_do_not_wait_for_it(
    in_flight, monkeypatch
):
    """Also those whose draft could not even be sent: the worker has all it may be sent."""
    monkeypatch.setattr(costs, "FIRST_IN_PLAY", 8)
    limits = {"max_batches_in_flight": in_flight, "batch_size": 1, "window_size": 8}
    async with world(draft_timeout_seconds=600, **limits) as made, asyncio.timeout(60):
        made.patience.hold()
        await made.target()
        draft = await made.draft()
        draft.runner.gate.clear()
        asking = []
        for i in range(5):
            asking.append(asyncio.create_task(made.generate((i + 5,))))
            await made.bell.until(lambda: len(made.driver.ledger) == len(asking))
        await made.bell.until(lambda: made.in_flight(draft) == in_flight)
        rows = made.driver.scheduler.state.rows.values()
        await made.bell.until(lambda: any(row.phase is Phase.WANTS_DRAFT for row in rows))
        made.patience.run_out()
        asking += [asyncio.create_task(made.generate((i + 5,))) for i in range(5, 8)]
        for i, task in enumerate(asking):
            check(await task, (i + 5,))
        assert not draft.runner.passes
        draft.runner.gate.set()
        answer = await made.generate()
        check(answer)


async def test_an_answer_that_comes_after_its_request_ended_leaves_nothing():
    async with world() as made:
        made.patience.hold()
        await made.target()
        draft = await made.draft()
        asking = await under_way(made, request(max_tokens=LONG))
        await held(draft)
        made.patience.run_out()
        check(await asking, max_tokens=LONG)
        assert made.in_flight(draft) == 1
        draft.runner.gate.set()
        await made.settle()
        answer = await made.generate()
        check(answer)
        assert answer.completed.speculation.num_draft_tokens > 0


async def test_an_answer_in_time_makes_nothing_overdue():
    async with world() as made:
        made.patience.hold()
        await made.target()
        await made.draft()
        answer = await made.generate()
        made.patience.run_out()
        check(answer)
        assert made.parts.view.status().totals.num_overdue_drafts == 0


async def test_a_late_draft_worker_that_dies_is_left_and_another_one_drafts():
    async with world() as made:
        made.patience.hold()
        target = await made.target()
        slow = await made.draft("slow")
        asking = await under_way(made, request(max_tokens=LONG))
        await held(slow)
        target.runner.gate.clear()
        made.patience.run_out()
        other = await made.draft("other")
        await made.forget(slow)
        first = len(made.sent)
        target.runner.gate.set()
        check(await asking, max_tokens=LONG)
        assert other.runner.passes
        assert any(e.draft_tokens for batch in _verifies(made, first) for e in batch.entries)
        totals = made.parts.view.status().totals
        assert (totals.num_overdue_drafts, totals.num_draft_failures) == (1, 1)


async def test_a_late_draft_worker_can_leave():
    async with world() as made:
        made.patience.hold()
        target = await made.target()
        slow = await made.draft("slow")
        asking = await under_way(made, request(max_tokens=LONG))
        await held(slow)
        made.workers.remove(slow)
        leaving = asyncio.create_task(slow.leave())
        await made.until_state(slow, WorkerState.DRAINING)
        scheduler = made.driver.scheduler
        assert scheduler.rows_on(slow.name) == 1
        target.runner.gate.clear()
        made.patience.run_out()
        assert scheduler.rows_on(slow.name) == 0
        target.runner.gate.set()
        await leaving
        assert made.reason(slow) == "left"
        check(await asking, max_tokens=LONG)


async def test_patience_runs_out_by_the_clock_too(monkeypatch):
    """The real thing once: nobody tells the driver that the draft is late."""
    monkeypatch.setattr(costs, "FIRST_PATIENCE_SECONDS", 0.01)
    async with world() as made:
        await made.target()
        draft = await made.draft()
        draft.runner.gate.clear()
        check(await made.generate())
        assert not draft.runner.passes
        assert made.parts.view.status().totals.num_overdue_drafts == 1
        draft.runner.gate.set()
