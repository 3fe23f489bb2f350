"""One link per worker: a long-lived stream, reconnected while the worker keeps its lease.

A link is up from the first answered (empty) batch until its stream breaks, a batch takes too long,
or it is closed; what happens then is told to its owner. One recovery rule serves every failure:
up again means joined again. No scheduling here, and no model facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc.aio

from exspec.core.cluster import WorkerInfo
from exspec.core.errors import ExspecError, InternalError, ProtocolError, WorkerLostError
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import DraftBatch, DraftReply, VerifyBatch, VerifyReply
from exspec.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.convert import (
    draft_batch_to_message,
    draft_reply_from_message,
    verify_batch_to_message,
    verify_reply_from_message,
)
from exspec.wire.status import from_call
from exspec.wire.tls import TlsConfig

logger = logging.getLogger(__name__)

Batch = DraftBatch | VerifyBatch
Reply = DraftReply | VerifyReply

HANDSHAKE_SECONDS = 60.0
RECONNECT_SECONDS = 0.5
LONGEST_RECONNECT_SECONDS = 300.0
"""Where the wait ends up for a worker that keeps joining and then does no work."""

FIRST_RELEASE_ID = 1 << 62
"""Ids from here on are the link's own batches, far above any of the scheduler's."""


class Exchange(Protocol):
    """One role's stream: batches in, replies out, in order."""

    def __call__(
        self, channel: grpc.aio.Channel, batches: AsyncIterator[Batch], incarnation: str
    ) -> AsyncGenerator[Reply, None]: ...


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Whom a link tells. `on_up` may refuse the worker by raising; then the link stays down."""

    on_up: Callable[[grpc.aio.Channel], Awaitable[None]]
    on_down: Callable[[ExspecError], None]
    on_reply: Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class LinkKind:
    """What differs between the roles: the stream, how to release, and how long a batch may take.

    `tls` is how workers are connected to; None is plain text.
    """

    exchange: Exchange
    release: Callable[[BatchId, tuple[SequenceId, ...]], Batch]
    timeout_seconds: float
    tls: TlsConfig | None = None


class WorkerLink:
    """Owns one worker's stream, the batches in flight on it and the names of what it holds."""

    def __init__(self, worker: WorkerInfo, kind: LinkKind, events: LinkEvents) -> None:
        self._address = worker.address
        self._incarnation = worker.incarnation
        self._kind = kind
        self._events = events
        self._outgoing: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._deadlines: dict[BatchId, float] = {}
        self._scope: asyncio.Timeout | None = None
        self._holdings = Holdings()
        self._has_worked = False
        self._num_futile = 0
        self._is_up = False
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why the link is down; empty while it is up, or was never tried."""
        return self._trouble

    def send(self, batch: Batch) -> None:
        """Queue a batch; its reply comes to `on_reply` while the link is up."""
        self._holdings.note_sent(entry.key.sequence_id for entry in batch.entries)
        self._put(batch)

    def release(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Let the worker forget sequences; the answer means nothing."""
        self._put(self._release_batch(tuple(sequence_ids)))

    async def run(self) -> None:
        """Connect, serve, reconnect; until cancelled."""
        while True:
            try:
                await self._serve()
            except ExspecError as error:
                self._go_down(error)
            except asyncio.CancelledError:
                self._go_down(WorkerLostError("the link was closed"))
                raise
            except Exception:  # the edge of a task: a bug here may not end the link in silence
                logger.exception("link.failed address=%s", self._address)
                self._go_down(InternalError("internal error; see the log"))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # grpc takes a cancellation for a broken connection while a call is being opened.
                raise asyncio.CancelledError
            wait = RECONNECT_SECONDS * 2 ** min(self._num_futile, 10)
            await asyncio.sleep(min(wait, LONGEST_RECONNECT_SECONDS))

    async def _serve(self) -> None:
        """One connection, from handshake to its end, which is always an error."""
        self._outgoing = asyncio.Queue()
        self._deadlines.clear()
        self._holdings.forget_unanswered()
        self._has_worked = False
        async with (
            open_aio_channel(self._address, self._kind.tls) as channel,
            contextlib.aclosing(
                self._kind.exchange(channel, self._batches(), self._incarnation)
            ) as replies,
        ):
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await self._shake_hands(replies)
                    self._is_up = True
                    await self._events.on_up(channel)
                self._trouble = ""
                async with asyncio.timeout(None) as self._scope:
                    self._reschedule()
                    await self._receive(replies)
            except grpc.aio.AioRpcError as error:
                raise from_call(error) from error
            except TimeoutError as error:
                raise WorkerLostError(
                    f"worker at {self._address} did not answer in time"
                ) from error
            finally:
                self._scope = None
                self._outgoing.put_nowait(None)

    async def _shake_hands(self, replies: AsyncIterator[Reply]) -> None:
        """A first batch without work, which releases what an earlier connection left behind."""
        batch = self._release_batch(self._holdings.names)
        self._outgoing.put_nowait(batch)
        if await anext(replies, None) is None:
            raise WorkerLostError(f"worker at {self._address} closed the stream")
        self._holdings.note_released(batch.batch_id)

    async def _receive(self, replies: AsyncIterator[Reply]) -> None:
        async for reply in replies:
            if self._deadlines.pop(reply.batch_id, None) is None:
                raise ProtocolError(f"worker at {self._address} answered an unknown batch")
            self._reschedule()
            if reply.batch_id < FIRST_RELEASE_ID:
                self._events.on_reply(reply)
                self._has_worked = True
            else:
                self._holdings.note_released(reply.batch_id)
        raise WorkerLostError(f"worker at {self._address} closed the stream")

    async def _batches(self) -> AsyncIterator[Batch]:
        """What is sent, until this connection ends."""
        outgoing = self._outgoing
        while (batch := await outgoing.get()) is not None:
            yield batch

    def _put(self, batch: Batch) -> None:
        now = asyncio.get_running_loop().time()
        self._deadlines[batch.batch_id] = now + self._kind.timeout_seconds
        self._reschedule()
        self._outgoing.put_nowait(batch)

    def _reschedule(self) -> None:
        """Batches are answered in order and get equal time, so the oldest is due first."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(next(iter(self._deadlines.values()), None))

    def _release_batch(self, sequence_ids: tuple[SequenceId, ...]) -> Batch:
        return self._kind.release(self._holdings.begin_release(sequence_ids), sequence_ids)

    def _go_down(self, error: ExspecError) -> None:
        """Down, and longer each time in a row that the worker joined and did no work."""
        self._trouble = error.message
        was_up, self._is_up = self._is_up, False
        if not was_up:
            return
        self._num_futile = 0 if self._has_worked else self._num_futile + 1
        try:
            self._events.on_down(error)
        except Exception:  # as above
            logger.exception("link.down_failed address=%s", self._address)


class Holdings:
    """What a worker may hold, whatever became of the messages: sent, and not known released.

    A release counts once it is answered, and only for what was not sent again after it.
    """

    def __init__(self) -> None:
        self._num_notes = 0
        self._sent: dict[SequenceId, int] = {}
        self._releases: dict[BatchId, tuple[int, tuple[SequenceId, ...]]] = {}

    @property
    def names(self) -> tuple[SequenceId, ...]:
        """What the worker may hold."""
        return tuple(self._sent)

    def note_sent(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Work for these goes out."""
        self._num_notes += 1
        self._sent.update(dict.fromkeys(sequence_ids, self._num_notes))

    def begin_release(self, sequence_ids: tuple[SequenceId, ...]) -> BatchId:
        """A release of these goes out, as the batch of the returned id."""
        self._num_notes += 1
        batch_id = BatchId(FIRST_RELEASE_ID + self._num_notes)
        self._releases[batch_id] = (self._num_notes, sequence_ids)
        return batch_id

    def forget_unanswered(self) -> None:
        """A connection ended: what was not answered on it will not be."""
        self._releases.clear()

    def note_released(self, batch_id: BatchId) -> None:
        """The release was answered."""
        when, sequence_ids = self._releases.pop(batch_id)
        for sequence_id in sequence_ids:
            if self._sent.get(sequence_id, when) < when:
                del self._sent[sequence_id]


async def exchange_drafts(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch], incarnation: str
) -> AsyncGenerator[Reply, None]:
    """DraftService's stream."""

    async def requests() -> AsyncIterator[draft_pb2.DraftRequest]:
        async for batch in batches:
            assert isinstance(batch, DraftBatch)
            yield draft_batch_to_message(batch, incarnation)

    async for response in draft_pb2_grpc.DraftServiceStub(channel).Draft(requests()):
        yield draft_reply_from_message(response)


def release_drafts(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A draft batch without work."""
    return DraftBatch(batch_id, (), sequence_ids)


def release_verifies(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A verify batch without work."""
    return VerifyBatch(batch_id, (), sequence_ids)


async def exchange_verifies(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch], incarnation: str
) -> AsyncGenerator[Reply, None]:
    """TargetService's stream."""

    async def requests() -> AsyncIterator[target_pb2.VerifyRequest]:
        async for batch in batches:
            assert isinstance(batch, VerifyBatch)
            yield verify_batch_to_message(batch, incarnation)

    async for response in target_pb2_grpc.TargetServiceStub(channel).Verify(requests()):
        yield verify_reply_from_message(response)
