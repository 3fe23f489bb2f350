"""Workers that operators drain, and workers that lose their name to another process."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from coordinator_world import Answer, World, check, renamed, request, under_way, world
from fake_worker import held

from coordinator.members import MAX_INCARNATIONS, Incarnations
from exspec.core import errors
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role, WorkerId
from exspec.v1 import registry_pb2
from exspec.wire.status import from_call

LONG = 1500


async def _drain(made: World, name: str) -> int:
    """As `exspec drain` does."""
    asked = registry_pb2.DrainWorkerRequest(worker_id=name)
    try:
        return (await made.admin.DrainWorker(asked)).num_moved_sequences
    except grpc.aio.AioRpcError as error:
        raise from_call(error) from error


async def _asked(made: World, number: int = 1) -> list[asyncio.Task[Answer]]:
    return [await under_way(made, request(max_tokens=LONG)) for _ in range(number)]


@pytest.mark.parametrize("role", Role)
async def test_a_drained_worker_loses_nothing_and_is_told_to_stop(role):
    async with world(lease_seconds=1.0) as made:
        workers = {
            Role.TARGET: await made.target("t1", capacity=4000),
            Role.DRAFT: await made.draft("d1", capacity=4000),
        }
        asking = await _asked(made, 4)
        await made.target("t2", capacity=4000)
        await made.draft("d2", capacity=4000)
        leaving = workers[role]
        await made.bell.until(lambda: made.driver.scheduler.rows_on(leaving.name) == 4)
        assert await _drain(made, leaving.name) == 4
        assert made.state(leaving) is WorkerState.DRAINING
        assert made.driver.scheduler.rows_on(leaving.name) == 0
        await asyncio.wait_for(leaving._keeping, 10)  # it ends by itself, and is not refused
        made.workers.remove(leaving)
        await leaving.leave()
        assert (made.state(leaving), made.reason(leaving)) == (WorkerState.LOST, "left")
        for answer in await asyncio.gather(*asking):
            check(answer, max_tokens=LONG)
            assert answer.completed.speculation.num_draft_tokens > 0


async def test_a_worker_that_still_holds_rows_is_not_told_to_stop():
    async with world(lease_seconds=0.5) as made:
        target = await made.target("t1", capacity=4000)
        asking = (await _asked(made))[0]
        await held(target)
        draining = asyncio.create_task(_drain(made, "t1"))
        await made.until_state(target, WorkerState.DRAINING)
        asked = registry_pb2.HeartbeatRequest(worker_id="t1", incarnation=target.incarnation)
        answer = await made.registry.Heartbeat(asked)
        assert (answer.is_known, answer.should_stop) == (True, False)
        assert not draining.done()
        target.runner.gate.set()
        assert await draining == 1
        assert (await made.registry.Heartbeat(asked)).should_stop
        await made.target("t2", capacity=4000)
        check(await asking, max_tokens=LONG)


async def test_the_rows_of_a_drained_last_target_wait_their_time():
    async with world(unavailable_seconds=0.3) as made:
        first = await made.target("t1", capacity=4000)
        asking = (await _asked(made))[0]
        assert await _drain(made, "t1") == 1
        assert not made.parts.pools.has_target
        answer = await asking
        assert isinstance(answer.error, errors.UnavailableError)
        assert f"{len(answer.tokens)} tokens" in answer.error.message
        made.workers.remove(first)
        await first.kill()
        await made.target("t2", capacity=4000)
        check(await made.generate())


async def test_draining_again_is_no_trouble():
    async with world() as made:
        await made.target("t1")
        assert await _drain(made, "t1") == 0
        assert await _drain(made, "t1") == 0


async def test_draining_a_stranger_says_who_is_there():
    async with world() as made:
        with pytest.raises(errors.InvalidRequestError, match=r"'t9' is not known; known: none"):
            await _drain(made, "t9")
        await made.target("t1")
        await made.draft("d1")
        with pytest.raises(errors.InvalidRequestError, match=r"known: t1, d1") as caught:
            await _drain(made, "t9")
        assert caught.value.field == "worker_id"


# Names


async def test_a_process_that_lost_its_name_stays_out():
    async with world(lease_seconds=0.5) as made:
        old = await made.target("t", capacity=4000)
        asking = (await _asked(made))[0]
        new = made.new(Role.TARGET, "t", capacity=4000)
        renamed(new, "t-2")
        await made.start(new)
        with pytest.raises(errors.IncompatibleWorkerError, match="taken over by another process"):
            await asyncio.wait_for(old._keeping, 10)
        await made.until_state(new, WorkerState.READY)
        assert made.state(old) is WorkerState.REFUSED
        assert "taken over" in made.reason(old)
        check(await asking, max_tokens=LONG)
        with pytest.raises(errors.IncompatibleWorkerError):
            await made.register(old)
        assert made.state(new) is WorkerState.READY


async def test_one_that_was_lost_and_replaced_meanwhile_stays_out_too():
    async with world(lease_seconds=0.5) as made:
        old = await made.target("t")
        await old.hush()
        await made.until_state(old, WorkerState.LOST)
        new = made.new(Role.TARGET, "t")
        renamed(new, "t-2")
        await made.start(new)
        await made.until_state(new, WorkerState.READY)
        with pytest.raises(errors.IncompatibleWorkerError, match="taken over"):
            await made.register(old)
        check(await made.generate())


def test_incarnations_are_told_apart_by_name_and_remembered_within_bounds():
    seen, worker = Incarnations(), WorkerId("w")
    seen.note(worker, "1")
    seen.note(worker, "1")
    assert not seen.is_replaced(worker, "1")
    seen.note(worker, "2")
    assert seen.is_replaced(worker, "1")
    assert not seen.is_replaced(worker, "2")
    assert not seen.is_replaced(WorkerId("v"), "1")
    for i in range(2 * MAX_INCARNATIONS):
        seen.note(worker, f"more-{i}")
        seen.note(WorkerId(f"w-{i}"), "1")
    assert not seen.is_replaced(worker, "1")
    assert len(seen._newest) == len(seen._replaced) == MAX_INCARNATIONS
