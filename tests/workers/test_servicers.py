"""The workers' services over loopback: order, liveness during a pass, before and after."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace

import grpc.aio
import pytest
from bell import Bell
from grpc_health.v1 import health_pb2, health_pb2_grpc
from toy import ToyRunner, continuation, draft_language

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.servicer import DraftServicer
from exspec.core.errors import ProtocolError, UnavailableError, WorkerLostError
from exspec.core.models import TokenizerAssets
from exspec.runtime.clock import monotonic
from exspec.runtime.worker_thread import WorkerThread
from exspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.server import RpcServer
from exspec.wire.status import from_call
from target_worker.servicer import TargetServicer
from target_worker.verifier import Verifier

PROMPT = (11, 0, 2)


@contextlib.asynccontextmanager
async def _serving(*, is_loaded: bool = True):
    """Both services on one server, each with its own runner, on one worker thread."""
    thread = WorkerThread("worker")
    server = RpcServer(["exspec.v1.TargetService", "exspec.v1.DraftService"])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    target = TargetServicer(thread, monotonic, "life-1")
    draft = DraftServicer(thread, monotonic, "life-1")
    target_pb2_grpc.add_TargetServiceServicer_to_server(target, server.grpc_server)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(draft, server.grpc_server)
    runner, draft_runner = ToyRunner(num_slots=2), ToyRunner(draft_language, num_slots=2)
    verifier = Verifier(runner, monotonic, orphan_seconds=600)
    drafter = Drafter(ModelProposer(draft_runner), monotonic, orphan_seconds=600)
    if is_loaded:
        target.open(verifier, TokenizerAssets("{}", "t", {"bos_token": "<s>"}))
        draft.open(drafter)
    await server.start()
    try:
        async with open_aio_channel(address) as channel:
            yield SimpleNamespace(
                channel=channel,
                thread=thread,
                runner=runner,
                draft_runner=draft_runner,
                verifier=verifier,
                drafter=drafter,
                target=target_pb2_grpc.TargetServiceStub(channel),
                draft=draft_pb2_grpc.DraftServiceStub(channel),
            )
    finally:
        runner.gate.set()
        draft_runner.gate.set()
        await server.stop(0)
        thread.close()


def _verify(batch_id: int, name: str = "s", tokens: tuple[int, ...] = PROMPT):
    key = common_pb2.EntryKey(sequence_id=name, round_index=batch_id)
    item = target_pb2.VerifyEntry(key=key, tokens=tokens)
    return target_pb2.VerifyRequest(batch_id=batch_id, entries=[item])


def _draft(batch_id: int, name: str = "s"):
    key = common_pb2.EntryKey(sequence_id=name, round_index=batch_id)
    item = draft_pb2.DraftEntry(key=key, tokens=PROMPT, num_draft_tokens=2)
    return draft_pb2.DraftRequest(batch_id=batch_id, entries=[item])


async def _feed(*requests):
    for request in requests:
        yield request


async def test_every_request_gets_one_reply_in_order():
    async with _serving() as served:
        verifies = served.target.Verify(_feed(*(_verify(i) for i in range(1, 9))))
        assert [reply.batch_id async for reply in verifies] == list(range(1, 9))
        drafts = served.draft.Draft(_feed(*(_draft(i) for i in range(1, 9))))
        replies = [reply async for reply in drafts]
        assert [reply.batch_id for reply in replies] == list(range(1, 9))
        expected = continuation(PROMPT, 2, draft_language)
        assert tuple(replies[0].results[0].draft_tokens) == expected


async def test_health_is_answered_while_a_pass_runs():
    async with _serving() as served:
        served.runner.gate.clear()
        verify = served.target.Verify(_feed(_verify(1)))
        reading = asyncio.create_task(verify.read())
        assert await asyncio.to_thread(served.runner.entered.wait, 60)
        stub = health_pb2_grpc.HealthStub(served.channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        assert (await served.target.GetTokenizer(target_pb2.GetTokenizerRequest())).chat_template
        assert not reading.done()
        served.runner.gate.set()
        assert (await reading).results[0].bonus_token == continuation(PROMPT, 1)[0]


async def _error_of(call: grpc.aio.Call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return from_call(caught.value)


async def test_before_the_model_is_loaded_calls_are_unavailable():
    async with _serving(is_loaded=False) as served:
        for call in (
            served.target.Verify(_feed(_verify(1))),
            served.draft.Draft(_feed(_draft(1))),
            served.target.GetTokenizer(target_pb2.GetTokenizerRequest()),
        ):
            assert isinstance(await _error_of(call), UnavailableError)


async def test_a_batch_that_makes_no_sense_ends_the_stream_with_the_reason():
    async with _serving() as served:
        error = await _error_of(served.target.Verify(_feed(_verify(1, tokens=()))))
        assert isinstance(error, ProtocolError)
        assert "tokens" in error.message
        assert served.runner.passes == []
        replies = served.target.Verify(_feed(_verify(2)))
        assert [reply.batch_id async for reply in replies] == [2]


async def test_the_tokenizer_travels_as_data():
    async with _serving() as served:
        message = await served.target.GetTokenizer(target_pb2.GetTokenizerRequest())
        assert (message.tokenizer_json, message.chat_template) == ("{}", "t")
        assert dict(message.special_tokens) == {"bos_token": "<s>"}


@pytest.mark.parametrize("ending", ["half-closed", "cancelled"])
async def test_what_came_over_a_stream_is_forgotten_when_it_ends(ending):
    """Else a coordinator that is killed and started again finds all slots taken."""
    async with _serving() as served:
        bell = Bell()
        served.runner.on_release = bell.ring
        verify, draft = served.target.Verify(), served.draft.Draft()
        await verify.write(_verify(1, "a"))
        await verify.write(_verify(2, "b"))
        await draft.write(_draft(1, "a"))
        assert [(await verify.read()).batch_id for _ in range(2)] == [1, 2]
        assert (await draft.read()).batch_id == 1
        assert (served.verifier.num_sequences, served.drafter.num_sequences) == (2, 1)
        for call in (verify, draft):
            if ending == "cancelled":
                call.cancel()
            else:
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
        # The next stream finds room for two other sequences.
        await bell.until(lambda: not served.verifier.num_sequences)
        again = served.target.Verify(_feed(_verify(1, "c"), _verify(2, "d")))
        statuses = [reply.results[0].status async for reply in again]
        assert statuses == [common_pb2.ENTRY_STATUS_OK] * 2
        await served.thread.run(lambda: None)
        assert served.drafter.num_sequences == 0


def _wait(holds):
    while not holds():
        time.sleep(0.01)


async def test_a_release_that_was_not_reached_when_its_stream_ended_is_not_lost():
    """Else the slot is taken until the sequence counts as an orphan."""
    async with _serving() as served:
        verify, draft = served.target.Verify(), served.draft.Draft()
        for call, request in ((verify, _verify(1)), (draft, _draft(1))):
            await call.write(request)
            assert (await call.read()).batch_id == 1
        go_on = threading.Event()
        served.thread.post(go_on.wait, 30)
        waiting = served.thread._executor._work_queue.qsize
        async with asyncio.timeout(30):
            await verify.write(target_pb2.VerifyRequest(batch_id=2, released_sequence_ids=["s"]))
            await draft.write(draft_pb2.DraftRequest(batch_id=2, released_sequence_ids=["s"]))
            await asyncio.to_thread(_wait, lambda: waiting() >= 2)
            verify.cancel()
            draft.cancel()
            # What each stream held is to be forgotten, in its turn.
            await asyncio.to_thread(_wait, lambda: waiting() >= 4)
        go_on.set()
        await served.thread.run(lambda: None)
        assert (served.verifier.num_sequences, served.drafter.num_sequences) == (0, 0)


async def test_a_message_for_another_incarnation_is_refused():
    async with _serving() as made:
        for meant in ("", "life-1"):
            request = _verify(1)
            request.incarnation = meant
            assert [reply async for reply in made.target.Verify(iter([request]))]
        for stub, request in ((made.target.Verify, _verify(2)), (made.draft.Draft, _draft(2))):
            request.incarnation = "life-2"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [reply async for reply in stub(iter([request]))]
            assert isinstance(from_call(caught.value), WorkerLostError)
        assert len(made.runner.passes) == 2


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_what_waits_on_a_stream_that_is_given_up_is_not_computed(role):
    """Its answers would be late: the coordinator has sent the rows elsewhere by then."""
    async with _serving() as served:
        runner = served.runner if role == "target" else served.draft_runner
        entry = _verify if role == "target" else _draft
        runner.gate.clear()
        stub = served.target.Verify if role == "target" else served.draft.Draft
        call = stub()
        for number in range(1, 6):
            await call.write(entry(number, f"s{number}"))
        assert await asyncio.to_thread(runner.entered.wait, 60)
        # Another stream's batch waits for the one thread behind what runs now.
        behind = stub()
        await behind.write(entry(1, "behind"))
        await _until_queued(served.thread, 1)
        call.cancel()
        behind.cancel()
        again = stub()
        await again.write(entry(1, "again"))
        # The batch behind, the end of both streams, the new stream's batch.
        await _until_queued(served.thread, 4)
        runner.gate.set()
        assert (await again.read()).batch_id == 1
        await again.done_writing()
        assert await again.read() is grpc.aio.EOF
        await served.thread.run(lambda: None)
        first = {row.slot for row in runner.passes[0]}
        assert len(first) == 1
        num_prompts_fed = sum(row.start == 0 for rows in runner.passes for row in rows)
        assert num_prompts_fed == 2  # the one that ran, and the new stream's


async def _until_queued(thread: WorkerThread, num_items: int) -> None:
    async with asyncio.timeout(20):
        while thread._executor._work_queue.qsize() < num_items:  # noqa: ASYNC110 - nobody rings
            await asyncio.sleep(0.01)
