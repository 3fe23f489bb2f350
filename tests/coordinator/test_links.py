"""What a worker may hold, whatever became of the messages; and connections that leave nothing."""

from __future__ import annotations

import asyncio
import gc

from coordinator_world import check, world
from toy import facts

from coordinator.holdings import Holdings
from coordinator.links import LinkEvents, LinkKind, WorkerLink
from coordinator.roles import release_verifies
from exspec.core.cluster import WorkerInfo, WorkerState
from exspec.core.errors import WorkerLostError
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId

A, B, C = SequenceId("a"), SequenceId("b"), SequenceId("c")


FIRST, SECOND = BatchId(1), BatchId(2)


def test_what_was_sent_may_be_held_until_its_release_is_answered():
    holdings = Holdings()
    holdings.note_sent(FIRST, [A, B])
    holdings.note_sent(SECOND, [A, C])
    for batch_id in (FIRST, SECOND):
        assert holdings.note_answered(batch_id) == ()
    release = holdings.begin_release((A, B))
    assert set(holdings.names) == {A, B, C}
    holdings.note_released(release)
    assert holdings.names == (C,)


def test_what_was_sent_again_after_its_release_is_held():
    holdings = Holdings()
    holdings.note_sent(FIRST, [A])
    release = holdings.begin_release((A,))
    holdings.note_sent(SECOND, [A])
    holdings.note_released(release)
    assert holdings.names == (A,)
    for batch_id in (FIRST, SECOND):
        assert holdings.note_answered(batch_id) == ()


def test_work_that_its_release_has_overtaken_is_released_again():
    holdings = Holdings()
    holdings.note_sent(FIRST, [A, B])
    holdings.note_sent(SECOND, [A])
    holdings.note_released(holdings.begin_release((A,)))
    assert set(holdings.names) == {A, B}
    assert holdings.note_answered(FIRST) == (), "the other batch may still come"
    assert holdings.note_answered(SECOND) == (A,)
    holdings.note_released(holdings.begin_release((A,)))
    assert holdings.names == (B,)


def test_what_was_overtaken_and_lives_again_is_not_released():
    holdings = Holdings()
    holdings.note_sent(FIRST, [A])
    holdings.note_released(holdings.begin_release((A,)))
    holdings.note_sent(SECOND, [A])
    assert holdings.note_answered(FIRST) == ()
    assert holdings.note_answered(SECOND) == ()
    assert holdings.names == (A,)


def test_a_release_that_was_never_answered_is_repeated_with_the_next_connection():
    holdings = Holdings()
    holdings.note_sent(FIRST, [A])
    holdings.begin_release((A,))
    holdings.forget_unanswered()
    handshake = holdings.begin_release(holdings.names)
    holdings.note_released(handshake)
    assert holdings.names == ()


def test_every_release_has_an_id_of_its_own():
    holdings = Holdings()
    assert len({holdings.begin_release(()) for _ in range(5)}) == 5


async def test_a_link_that_is_closed_ends_whatever_its_connection_makes_of_it():
    """The library's call may swallow the cancellation and report that the connection failed."""
    num_connections = 0
    is_connecting = asyncio.Event()

    async def exchange(channel, batches, incarnation):
        nonlocal num_connections
        num_connections += 1
        is_connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if num_connections > 1:
                raise
            raise WorkerLostError("the connection failed at that moment") from None
        yield

    async def on_up(channel):
        raise AssertionError("it never answered")

    worker = WorkerInfo(WorkerId("w"), "w-1", Role.TARGET, "127.0.0.1:1", 1, facts())
    kind = LinkKind(exchange, release_verifies, timeout_seconds=5)
    link = WorkerLink(worker, kind, LinkEvents(on_up, lambda error: None, lambda reply: None))
    running = asyncio.create_task(link.run())
    await is_connecting.wait()
    running.cancel()
    await asyncio.wait({running}, timeout=30)
    is_closed = running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert is_closed
    assert num_connections == 1


def _num_senders() -> int:
    """Tasks of the library that feed a stream with requests."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return sum("_consume_request_iterator" in name for name in names)


async def test_connections_that_break_leave_no_tasks_behind():
    async with world() as made:
        target = await made.target()
        draft = await made.draft()
        gc.disable()  # which would tidy up, and complain
        try:
            for worker in (target, draft) * 3:
                await worker.break_stream()
                await made.until_state(worker, WorkerState.JOINING)
                await made.until_state(worker, WorkerState.READY)
            check(await made.generate())
            await made.settle()
            assert _num_senders() == 2
        finally:
            gc.enable()
