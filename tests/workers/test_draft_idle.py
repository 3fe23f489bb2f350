"""Drafting ahead in the servicer: it fills idle time, and a batch that arrives is next."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from bell import Bell
from drafting import PROMPT
from toy import ToyRunner, continuation, draft_language

from draft_worker.drafter import Drafter
from draft_worker.idle import IdleTime, Inbox
from draft_worker.model_proposer import ModelProposer
from draft_worker.servicer import DraftServicer
from exspec.runtime.clock import monotonic
from exspec.runtime.worker_thread import WorkerThread
from exspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.server import RpcServer


@contextlib.asynccontextmanager
async def _serving(num_ahead: int):
    """A draft worker over loopback that rings when a pass begins and when a request arrives."""
    bell, thread, arrivals = Bell(), WorkerThread("worker"), []

    def clock() -> float:
        arrivals.append(monotonic())
        bell.ring()
        return arrivals[-1]

    runner = ToyRunner(draft_language, num_slots=4)
    runner.on_pass = runner.on_release = bell.ring
    drafter = Drafter(ModelProposer(runner), monotonic, orphan_seconds=600, num_ahead=num_ahead)
    servicer = DraftServicer(thread, clock, "life-1")
    servicer.open(drafter)
    server = RpcServer(["exspec.v1.DraftService"])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc_server)
    await server.start()
    try:
        async with open_aio_channel(address) as channel:
            yield SimpleNamespace(
                bell=bell,
                thread=thread,
                arrivals=arrivals,
                runner=runner,
                drafter=drafter,
                stub=draft_pb2_grpc.DraftServiceStub(channel),
            )
    finally:
        runner.gate.set()
        await server.stop(0)
        thread.close()


def _request(batch_id: int, log=PROMPT, *, name: str = "a", start: int = 0):
    key = common_pb2.EntryKey(sequence_id=name, round_index=batch_id)
    entry = draft_pb2.DraftEntry(key=key, start=start, tokens=log[start:], num_draft_tokens=2)
    return draft_pb2.DraftRequest(batch_id=batch_id, entries=[entry])


def _hold_at_pass(made, index: int) -> None:
    """Hold up the pass of this index; rings when it has begun."""

    def on_pass() -> None:
        if len(made.runner.passes) == index:
            made.runner.gate.clear()
        made.bell.ring()

    made.runner.on_pass = on_pass


def _is_held(made) -> bool:
    return not made.runner.gate.is_set()


async def test_an_idle_worker_drafts_ahead_and_the_next_batch_needs_no_pass():
    async with _serving(num_ahead=3) as made:
        _hold_at_pass(made, 4)
        call = made.stub.Draft()
        await call.write(_request(1))
        first = await call.read()
        await made.bell.until(lambda: _is_held(made))  # in the last step
        made.runner.gate.set()
        await made.thread.run(lambda: None)
        assert made.drafter.ahead.num_drafted == 3
        log = (*PROMPT, *first.results[0].draft_tokens)
        log = (*log, *continuation(log, 1, draft_language))
        await call.write(_request(2, log, start=len(PROMPT)))
        second = await call.read()
        assert tuple(second.results[0].draft_tokens) == continuation(log, 2, draft_language)
        assert (second.timings.num_rows, second.timings.num_tokens) == (0, 0)


@pytest.mark.parametrize("is_other_stream", [False, True])
async def test_a_batch_that_arrives_during_a_step_is_next(is_other_stream):
    async with _serving(num_ahead=8) as made:
        _hold_at_pass(made, 2)
        call = made.stub.Draft()
        await call.write(_request(1))
        await call.read()
        await made.bell.until(lambda: _is_held(made))  # in the first step ahead
        other = made.stub.Draft() if is_other_stream else call
        await other.write(_request(2, (7, 8), name="b"))
        await made.bell.until(lambda: len(made.arrivals) == 2)
        _hold_at_pass(made, 5)
        made.runner.gate.set()
        reply = await other.read()
        assert tuple(reply.results[0].draft_tokens) == continuation((7, 8), 2, draft_language)
        await made.bell.until(lambda: _is_held(made))
        names = [[row.slot for row in rows] for rows in made.runner.passes]
        assert names == [[0], [0], [0], [1], [1]]  # batch, one step, batch; then it goes on
        made.runner.on_pass = made.bell.ring
        made.runner.gate.set()
        assert not made.runner.violations


async def test_while_another_batch_waits_no_step_is_done():
    async with _serving(num_ahead=8) as made:
        _hold_at_pass(made, 0)
        call = made.stub.Draft()
        await call.write(_request(1))
        await made.bell.until(lambda: _is_held(made))
        await call.write(_request(2, (7, 8), name="b"))
        await made.bell.until(lambda: len(made.arrivals) == 2)
        _hold_at_pass(made, 4)
        made.runner.gate.set()
        assert [(await call.read()).batch_id for _ in range(2)] == [1, 2]
        await made.bell.until(lambda: _is_held(made))
        assert [rows[0].slot for rows in made.runner.passes] == [0, 0, 1, 1]


@pytest.mark.parametrize("ending", ["half-closed", "cancelled"])
async def test_it_ends_with_the_stream(ending):
    async with _serving(num_ahead=64) as made:
        _hold_at_pass(made, 3)
        call = made.stub.Draft()
        await call.write(_request(1))
        await call.read()
        await made.bell.until(lambda: _is_held(made))
        if ending == "cancelled":
            call.cancel()
        else:
            await call.done_writing()
        made.runner.gate.set()
        await made.bell.until(lambda: not made.drafter.num_sequences)
        await made.thread.run(lambda: None)
        num_passes = len(made.runner.passes)
        assert not made.drafter.draft_ahead()
        await made.thread.run(lambda: None)
        assert len(made.runner.passes) == num_passes < 64


async def test_a_stream_that_ended_does_not_keep_the_worker_from_it():
    async with _serving(num_ahead=2) as made:
        gone = made.stub.Draft()
        await gone.write(_request(1))
        await gone.read()
        await gone.done_writing()
        await made.bell.until(lambda: not made.drafter.num_sequences)
        num_passes = len(made.runner.passes)
        call = made.stub.Draft()
        await call.write(_request(1, name="b"))
        await call.read()
        await made.bell.until(lambda: len(made.runner.passes) > num_passes + 2)


async def test_without_it_an_idle_worker_does_nothing():
    async with _serving(num_ahead=0) as made:
        call = made.stub.Draft()
        for batch_id in (1, 2):
            await call.write(_request(batch_id, name=str(batch_id)))
            await call.read()
        assert len(made.runner.passes) == 4


class _Requests:
    """A stream of requests that a test feeds."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[object] = asyncio.Queue()

    def __aiter__(self):
        return self

    async def __anext__(self):
        request = await self.queue.get()
        if isinstance(request, Exception):
            raise request
        return request


async def test_steps_end_when_there_is_no_more_to_do_and_a_fault_is_logged(caplog):
    thread, requests, bell = WorkerThread("worker"), _Requests(), Bell()
    idle_time, steps = IdleTime(thread), []

    def step() -> bool:
        steps.append(len(steps))
        bell.ring()
        if len(steps) == 4:
            raise ValueError("x")
        return len(steps) != 3

    with idle_time.watching(Inbox(requests, monotonic)):
        idle_time.spend(step)
        idle_time.spend(step)  # is spent already
        await bell.until(lambda: len(steps) == 3)
        await idle_time._spending
        idle_time.spend(step)
        await idle_time._spending
    assert len(steps) == 4
    assert "idle.failed" in caplog.text
    idle_time.spend(step)  # no stream is open
    await idle_time._spending
    assert len(steps) == 4
    thread.close()


async def test_an_inbox_is_idle_between_an_answer_and_the_next_request():
    requests = _Requests()
    inbox = Inbox(requests, monotonic)
    assert inbox.is_idle
    requests.queue.put_nowait("one")
    assert (await anext(inbox))[0] == "one"
    assert not inbox.is_idle
    asking = asyncio.create_task(anext(inbox))
    await asyncio.sleep(0)
    assert inbox.is_idle
    requests.queue.put_nowait(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        await asking
    assert not inbox.is_idle
    inbox.close()
