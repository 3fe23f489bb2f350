"""One link per worker: a long-lived stream, reconnected while the worker keeps its lease.

A link is up from the first answered (empty) batch until its stream breaks, a batch takes too long,
or it is closed; what happens then is told to its owner. One recovery rule serves every failure:
up again means joined again. No scheduling here, and no model facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc.aio

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

logger = logging.getLogger(__name__)

Batch = DraftBatch | VerifyBatch
Reply = DraftReply | VerifyReply

HANDSHAKE_SECONDS = 60.0
RECONNECT_SECONDS = 0.5

FIRST_RELEASE_ID = 1 << 62
"""Ids from here on are the link's own batches, far above any of the scheduler's."""


class Exchange(Protocol):
    """One role's stream: batches in, replies out, in order."""

    def __call__(
        self, channel: grpc.aio.Channel, batches: AsyncIterator[Batch]
    ) -> AsyncIterator[Reply]: ...


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Whom a link tells. `on_up` may refuse the worker by raising; then the link stays down."""

    on_up: Callable[[grpc.aio.Channel], Awaitable[None]]
    on_down: Callable[[ExspecError], None]
    on_reply: Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class LinkKind:
    """What differs between the roles: the stream, how to release, and how long a batch may take."""

    exchange: Exchange
    release: Callable[[BatchId, tuple[SequenceId, ...]], Batch]
    timeout_seconds: float


class WorkerLink:
    """Owns one worker's stream, the batches in flight on it and the names of what it holds."""

    def __init__(self, address: str, kind: LinkKind, events: LinkEvents) -> None:
        self._address = address
        self._kind = kind
        self._events = events
        self._outgoing: asyncio.Queue[Batch] = asyncio.Queue()
        self._deadlines: dict[BatchId, float] = {}
        self._scope: asyncio.Timeout | None = None
        self._held: set[SequenceId] = set()
        self._num_releases = 0
        self._is_up = False

    @property
    def is_up(self) -> bool:
        """Whether batches are answered."""
        return self._is_up

    def send(self, batch: Batch) -> None:
        """Queue a batch; its reply comes to `on_reply` while the link is up."""
        self._held.update(entry.key.sequence_id for entry in batch.entries)
        self._put(batch)

    def release(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Let the worker forget sequences; the answer means nothing."""
        released = tuple(sequence_ids)
        self._held.difference_update(released)
        self._put(self._kind.release(self._release_id(), released))

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
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve(self) -> None:
        """One connection, from handshake to its end, which is always an error."""
        self._outgoing = asyncio.Queue()
        self._deadlines.clear()
        async with open_aio_channel(self._address) as channel:
            replies = self._kind.exchange(channel, self._batches())
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await self._shake_hands(replies)
                    await self._events.on_up(channel)
                self._is_up = True
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

    async def _shake_hands(self, replies: AsyncIterator[Reply]) -> None:
        """A first batch without work, which releases what an earlier connection left behind."""
        left_behind = tuple(sorted(self._held))
        self._held.clear()
        self._outgoing.put_nowait(self._kind.release(self._release_id(), left_behind))
        if await anext(replies, None) is None:
            raise WorkerLostError(f"worker at {self._address} closed the stream")

    async def _receive(self, replies: AsyncIterator[Reply]) -> None:
        async for reply in replies:
            if self._deadlines.pop(reply.batch_id, None) is None:
                raise ProtocolError(f"worker at {self._address} answered an unknown batch")
            self._reschedule()
            if reply.batch_id < FIRST_RELEASE_ID:
                self._events.on_reply(reply)
        raise WorkerLostError(f"worker at {self._address} closed the stream")

    async def _batches(self) -> AsyncIterator[Batch]:
        outgoing = self._outgoing
        while True:
            yield await outgoing.get()

    def _put(self, batch: Batch) -> None:
        now = asyncio.get_running_loop().time()
        self._deadlines[batch.batch_id] = now + self._kind.timeout_seconds
        self._reschedule()
        self._outgoing.put_nowait(batch)

    def _reschedule(self) -> None:
        """Batches are answered in order and get equal time, so the oldest is due first."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(next(iter(self._deadlines.values()), None))

    def _release_id(self) -> BatchId:
        self._num_releases += 1
        return BatchId(FIRST_RELEASE_ID + self._num_releases)

    def _go_down(self, error: ExspecError) -> None:
        was_up, self._is_up = self._is_up, False
        if was_up:
            self._events.on_down(error)


async def exchange_drafts(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch]
) -> AsyncIterator[Reply]:
    """DraftService's stream."""

    async def requests() -> AsyncIterator[draft_pb2.DraftRequest]:
        async for batch in batches:
            assert isinstance(batch, DraftBatch)
            yield draft_batch_to_message(batch)

    async for response in draft_pb2_grpc.DraftServiceStub(channel).Draft(requests()):
        yield draft_reply_from_message(response)


def release_drafts(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A draft batch without work."""
    return DraftBatch(batch_id, (), sequence_ids)


def release_verifies(batch_id: BatchId, sequence_ids: tuple[SequenceId, ...]) -> Batch:
    """A verify batch without work."""
    return VerifyBatch(batch_id, (), sequence_ids)


async def exchange_verifies(
    channel: grpc.aio.Channel, batches: AsyncIterator[Batch]
) -> AsyncIterator[Reply]:
    """TargetService's stream."""

    async def requests() -> AsyncIterator[target_pb2.VerifyRequest]:
        async for batch in batches:
            assert isinstance(batch, VerifyBatch)
            yield verify_batch_to_message(batch)

    async for response in target_pb2_grpc.TargetServiceStub(channel).Verify(requests()):
        yield verify_reply_from_message(response)
