"""One link per worker: a long-lived stream, reconnected while the worker keeps its lease.

A link is up from the first answered (empty) batch until its stream breaks, a batch takes too long,
or it is closed; what happens then is told to its owner. One recovery rule serves every failure: a
circuit (`breaker`) says when the worker is tried again, and up again means joined again. No
scheduling here, and no model facts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc.aio

from coordinator.breaker import Backoff, Breaker, CircuitState
from coordinator.holdings import FIRST_RELEASE_ID, Holdings
from coordinator.replies import check_draft
from exspec.core.cluster import WorkerInfo
from exspec.core.errors import ExspecError, InternalError, ProtocolError, WorkerLostError
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import DraftBatch, DraftReply, EntryStatus, VerifyBatch, VerifyReply
from exspec.wire.channel import open_aio_channel
from exspec.wire.status import from_call
from exspec.wire.tls import TlsConfig

logger = logging.getLogger(__name__)

Batch = DraftBatch | VerifyBatch
Reply = DraftReply | VerifyReply

HANDSHAKE_SECONDS = 60.0
RECONNECT_SECONDS = 0.5
"""The wait after the first failure; twice as long after each one more in a row."""
TOKENS_IN_TIME = 512
"""Tokens a batch may feed in the plain time; one that feeds more (cold rows) gets more."""
FAILURES = frozenset({EntryStatus.FAILED, EntryStatus.INVALID})
MAX_FAILED_BATCHES = 3
"""Batches in a row whose entries all failed, after which a draft worker is left alone."""


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
    """What differs between the roles: the stream, how to release, and how long things may take.

    `timeout_seconds` bounds a batch, `trial_seconds` the first contact after a failure. `probe` is
    work that then has to be done before the link is up; without it an answer is enough, and what
    could not be reached is tried at a steady pace. `tls` None is plain text.
    """

    exchange: Exchange
    release: Callable[[BatchId, tuple[SequenceId, ...]], Batch]
    timeout_seconds: float
    trial_seconds: float = HANDSHAKE_SECONDS
    longest_backoff_seconds: float = 300.0
    probe: Callable[[BatchId, SequenceId], DraftBatch] | None = None
    tls: TlsConfig | None = None


class WorkerLink:
    """Owns one worker's stream, the batches in flight on it and the names of what it holds."""

    def __init__(self, worker: WorkerInfo, kind: LinkKind, events: LinkEvents) -> None:
        self._address = worker.address
        self._incarnation = worker.incarnation
        self._kind = kind
        self._events = events
        self._outgoing: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._due: dict[BatchId, float] = {}
        """Seconds that each batch in flight gets from when it is the oldest, oldest first."""
        self._oldest_since = 0.0
        self._scope: asyncio.Timeout | None = None
        self._holdings = Holdings()
        self._breaker = Breaker(Backoff(RECONNECT_SECONDS, kind.longest_backoff_seconds))
        self._num_failed = 0
        """Batches in a row whose entries all failed."""
        self._is_up = False
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why the link is down; empty while it is up, or was never tried."""
        if self._kind.probe is None or self._breaker.state is CircuitState.CLOSED:
            return self._trouble
        if self._breaker.state is CircuitState.HALF_OPEN:
            return f"circuit half-open, being tried: {self._trouble}"
        left = self._breaker.seconds_left(_now())
        return f"circuit open, next try in {left:.0f} s: {self._trouble}"

    def send(self, batch: Batch) -> None:
        """Queue a batch; its reply comes to `on_reply` while the link is up."""
        self._holdings.note_sent(batch.batch_id, (e.key.sequence_id for e in batch.entries))
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
            await self._sleep_until_due()
            self._breaker.begin_trial(_now())

    async def _sleep_until_due(self) -> None:
        while (left := self._breaker.seconds_left(_now())) > 0:  # noqa: ASYNC110 - a time, no event
            await asyncio.sleep(left)  # which may end a moment early

    async def _serve(self) -> None:
        """One connection, from handshake to its end, which is always an error."""
        self._outgoing = asyncio.Queue()
        self._due.clear()
        self._holdings.forget_unanswered()
        self._num_failed = 0
        is_trial = self._breaker.state is CircuitState.HALF_OPEN
        async with (
            open_aio_channel(self._address, self._kind.tls) as channel,
            contextlib.aclosing(
                self._kind.exchange(channel, self._batches(), self._incarnation)
            ) as replies,
        ):
            try:
                if is_trial:
                    async with asyncio.timeout(self._kind.trial_seconds):
                        await self._shake_hands(replies)
                        await self._probe(replies)
                    self._breaker.pass_trial()
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    if not is_trial:
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
        await self._ask(batch, replies)
        self._holdings.note_released(batch.batch_id)

    async def _probe(self, replies: AsyncIterator[Reply]) -> None:
        """Real work, on a sequence of its own, before any request's rows are risked again."""
        if self._kind.probe is None:
            return
        sequence_id = SequenceId(f"probe-{secrets.token_hex(6)}")
        batch = self._kind.probe(self._holdings.new_batch_id(), sequence_id)
        reply = await self._ask(batch, replies)
        if not isinstance(reply, DraftReply):
            raise ProtocolError(f"worker at {self._address} answered in another role")
        check_draft(batch, reply)
        (result,) = reply.results
        if result.status is not EntryStatus.OK:
            raise WorkerLostError(
                f"worker at {self._address} failed its trial: {result.status.value} {result.detail}"
            )
        self.release((sequence_id,))

    async def _ask(self, batch: Batch, replies: AsyncIterator[Reply]) -> Reply:
        """Send a batch while no other is under way, and wait for its answer."""
        self._outgoing.put_nowait(batch)
        reply = await anext(replies, None)
        if reply is None:
            raise WorkerLostError(f"worker at {self._address} closed the stream")
        return reply

    async def _receive(self, replies: AsyncIterator[Reply]) -> None:
        async for reply in replies:
            if self._due.pop(reply.batch_id, None) is None:
                raise ProtocolError(f"worker at {self._address} answered an unknown batch")
            self._oldest_since = _now()
            self._reschedule()
            if reply.batch_id < FIRST_RELEASE_ID:
                if again := self._holdings.note_answered(reply.batch_id):
                    self.release(again)
                self._events.on_reply(reply)
                self._judge(reply)
            else:
                self._holdings.note_released(reply.batch_id)
        raise WorkerLostError(f"worker at {self._address} closed the stream")

    def _judge(self, reply: Reply) -> None:
        """Whether that was work; a draft worker that keeps failing is lost."""
        if not has_failed(reply):
            self._num_failed = 0
            self._breaker.note_work()
            return
        self._num_failed += 1
        if self._num_failed >= MAX_FAILED_BATCHES:
            raise WorkerLostError(f"worker at {self._address}: {self._num_failed} batches failed")

    async def _batches(self) -> AsyncIterator[Batch]:
        """What is sent, until this connection ends."""
        outgoing = self._outgoing
        while (batch := await outgoing.get()) is not None:
            yield batch

    def _put(self, batch: Batch) -> None:
        if not self._due:
            self._oldest_since = _now()
        self._due[batch.batch_id] = self._kind.timeout_seconds * _stretch(batch)
        self._reschedule()
        self._outgoing.put_nowait(batch)

    def _reschedule(self) -> None:
        """Batches are answered in order: the time of one begins when the one before it is."""
        if self._scope is not None and not self._scope.expired():
            seconds = next(iter(self._due.values()), None)
            self._scope.reschedule(None if seconds is None else self._oldest_since + seconds)

    def _release_batch(self, sequence_ids: tuple[SequenceId, ...]) -> Batch:
        return self._kind.release(self._holdings.begin_release(sequence_ids), sequence_ids)

    def _go_down(self, error: ExspecError) -> None:
        """Down, and longer each time in a row that the worker did no work."""
        self._trouble = error.message
        was_up, self._is_up = self._is_up, False
        if was_up or self._kind.probe is not None:
            self._breaker.fail(_now())
        else:
            self._breaker.miss(_now())
        if not was_up:
            return
        try:
            self._events.on_down(error)
        except Exception:  # as above
            logger.exception("link.down_failed address=%s", self._address)


def has_failed(reply: Reply) -> bool:
    """Whether a draft worker failed at all entries of a batch. What a target fails is retried."""
    statuses = {result.status for result in reply.results}
    return isinstance(reply, DraftReply) and bool(statuses) and statuses <= FAILURES


def _stretch(batch: Batch) -> float:
    """How many times the plain time a batch gets, by the tokens that are fed with it."""
    num_fed = sum(len(entry.tokens) for entry in batch.entries)
    return max(1.0, num_fed / TOKENS_IN_TIME)


def _now() -> float:
    return asyncio.get_running_loop().time()
