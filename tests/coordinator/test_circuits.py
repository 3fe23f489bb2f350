"""Draft workers that hang or fail: what they cost, when they are tried again, and with what."""

from __future__ import annotations

import asyncio

import pytest
from coordinator_world import World, check, request, under_way, world
from fake_worker import FakeWorker, held
from toy import facts

from coordinator import links, roles
from coordinator.links import LinkEvents, WorkerLink
from coordinator.members import PoolLimits
from coordinator.roles import link_kind
from exspec.core import errors
from exspec.core.cluster import WorkerInfo, WorkerState
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.rounds import DraftBatch, DraftEntry, DraftReply, EntryKey, PassTimings

LONG = 120


@pytest.fixture(autouse=True)
def _short_trials(monkeypatch):
    monkeypatch.setattr(roles, "PROBE_SECONDS", 0.2)


def _probes(worker: FakeWorker) -> list[str]:
    """Sequences of trials that the worker was asked to draft for, as it sees them."""
    return [name for name in worker.asked if name.startswith("probe-")]


def _num_risked(made: World, first: int, name: str = "draft") -> int:
    """Rows of requests sent to a draft worker from the `first` batch on."""
    batches = [batch for worker, batch in made.sent[first:] if worker == name]
    return sum(len(batch.entries) for batch in batches if isinstance(batch, DraftBatch))


async def test_a_draft_worker_that_hangs_costs_its_time_once_and_is_then_left_alone():
    async with world(draft_timeout_seconds=0.3) as made:
        made.patience.hold()  # so that nothing but its time-out lets rows go on
        await made.target(capacity=4000)
        draft = await made.draft(capacity=4000)
        asking = await under_way(made, request(max_tokens=LONG))
        await held(draft)
        await made.eventually(lambda: made.reason(draft).startswith("circuit open, next try in"))
        first = len(made.sent)
        assert made.state(draft) is WorkerState.JOINING
        check(await asking, max_tokens=LONG)
        # It is tried again and again, with no request's rows, and less and less often.
        link = made.parts.registry._members["draft"].link
        await made.eventually(lambda: link._breaker.num_failures >= 3)
        check(await made.generate(max_tokens=LONG), max_tokens=LONG)
        assert _num_risked(made, first) == 0
        assert made.parts.view.status().totals.num_draft_failures == 1
        draft.runner.gate.set()


async def test_a_draft_worker_that_comes_back_passes_a_trial_and_works_again():
    async with world(draft_timeout_seconds=0.3) as made:
        made.patience.hold()
        await made.target()
        draft = await made.draft()
        asking = await under_way(made, request(max_tokens=LONG))
        await held(draft)
        check(await asking, max_tokens=LONG)
        assert _probes(draft) == []
        draft.runner.gate.set()
        await made.until_state(draft, WorkerState.READY)
        assert len(_probes(draft)) >= 1
        answer = await made.generate()
        check(answer)
        assert answer.completed.speculation.num_draft_tokens > 0
        assert made.reason(draft) == ""
        await made.settle()  # what the trial left is released
        assert draft.sessions.num_sequences == 0


async def test_another_draft_worker_takes_the_rows_of_one_whose_circuit_opens():
    async with world(draft_timeout_seconds=0.3) as made:
        made.patience.hold()
        await made.target(capacity=4000)
        slow = await made.draft("slow", capacity=4000)
        asking = await under_way(made, request(max_tokens=3000))
        other = await made.draft("other", capacity=4000)
        await held(slow)
        check(await asking, max_tokens=3000)
        assert other.runner.passes
        slow.runner.gate.set()


async def test_a_draft_worker_whose_batches_all_fail_is_left_alone_until_a_trial_succeeds():
    def fail(reply):
        for result in reply.results:
            result.status = 6
            result.kv_length = 0
            del result.draft_tokens[:]
        return reply

    async with world() as made:
        await made.target()
        draft = await made.draft()
        draft.tamper = fail
        for i in range(links.MAX_FAILED_BATCHES):
            check(await made.generate((i + 5,), LONG), (i + 5,), LONG)
        await made.eventually(lambda: "failed" in made.reason(draft))
        await made.eventually(lambda: "failed its trial" in made.reason(draft))
        first = len(made.sent)
        check(await made.generate())
        assert _num_risked(made, first) == 0
        draft.tamper = lambda reply: reply
        await made.until_state(draft, WorkerState.READY)
        answer = await made.generate()
        check(answer)
        assert answer.completed.speculation.num_draft_tokens > 0


async def test_one_that_passes_its_trials_and_hangs_at_work_waits_longer_each_time():
    async with world(draft_timeout_seconds=0.2) as made:
        made.patience.hold()
        await made.target(capacity=4000)
        draft = await made.draft(capacity=4000)
        stuck = asyncio.Event()

        async def hang_at_work(reply_names):
            if any(not name.startswith("probe-") for name in reply_names):
                await stuck.wait()

        draft.hold = hang_at_work
        asking = asyncio.create_task(made.ask(request(max_tokens=3000)))
        link = made.parts.registry._members["draft"].link
        await made.eventually(lambda: link._breaker.num_failures >= 3)
        assert len(_probes(draft)) >= 2
        draft.hold = None
        stuck.set()
        check(await asking, max_tokens=3000)
        await made.eventually(lambda: link._breaker.num_failures == 0)


class _Scope:
    """Stands in for a link's time-out; notes when it would end."""

    when: float | None = None

    def expired(self) -> bool:
        return False

    def reschedule(self, when: float | None) -> None:
        self.when = when


def _feeding(batch_id: int, num_tokens: int) -> DraftBatch:
    key = EntryKey(SequenceId(f"s{batch_id}"), 0, 0)
    return DraftBatch(BatchId(batch_id), (DraftEntry(key, 0, (5,) * num_tokens, 1),))


async def test_what_time_a_batch_gets(monkeypatch):
    """It begins when the batch before is answered, and one that feeds cold rows gets more."""
    now = 100.0
    monkeypatch.setattr(links, "_now", lambda: now)
    limits = PoolLimits(10, draft_timeout_seconds=5, target_timeout_seconds=300)
    worker = WorkerInfo(WorkerId("w"), "w-1", Role.DRAFT, "127.0.0.1:1", 1, facts())
    events = LinkEvents(lambda _: None, lambda _: None, lambda _: None)
    link = WorkerLink(worker, link_kind(Role.DRAFT, limits, None), events)
    scope = link._scope = _Scope()

    async def answers(*batch_ids):
        for batch_id in batch_ids:
            yield DraftReply(BatchId(batch_id), (), PassTimings())

    async def receive(*batch_ids):
        with pytest.raises(errors.WorkerLostError, match="closed the stream"):
            await link._receive(answers(*batch_ids))

    link.send(_feeding(1, 2))
    assert scope.when == 105
    now = 104.0
    link.send(_feeding(2, links.TOKENS_IN_TIME))
    link.send(_feeding(3, 4 * links.TOKENS_IN_TIME))
    assert scope.when == 105
    await receive(1)
    assert scope.when == 109
    now = 106.0
    await receive(2)
    assert scope.when == 106 + 4 * 5
    await receive(3)
    assert scope.when is None
    now = 200.0
    link.send(_feeding(4, 1))
    assert scope.when == 205
