"""The workers: who registered, who fits, who is connected, whose lease ran out.

It owns the links, and tells the driver of a worker's pool who joined and who is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc.aio

from coordinator.links import Batch, LinkEvents, Reply, WorkerLink
from coordinator.members import (
    HeartbeatAnswer,
    Incarnations,
    Member,
    Memory,
    PoolLimits,
    ServedModel,
)
from coordinator.pools import Pools
from coordinator.roles import link_kind
from coordinator.scheduler.events import WorkerJoined
from coordinator.text import TextCodec
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.errors import ExspecError, IncompatibleWorkerError, InvalidRequestError
from exspec.core.ids import Role, SequenceId, WorkerId
from exspec.runtime.clock import Clock
from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.convert_model import tokenizer_from_message
from exspec.wire.tls import TlsConfig

logger = logging.getLogger(__name__)


class WorkerRegistry:
    """Owns the registered workers. Drivers send through it (`driver.Senders`)."""

    def __init__(
        self,
        pools: Pools,
        limits: PoolLimits,
        clock: Clock,
        on_change: Callable[[], None],
        worker_tls: TlsConfig | None = None,
    ) -> None:
        """`on_change` is called when a worker became ready or ceased to be."""
        self._pools = pools
        self._limits = limits
        self._worker_tls = worker_tls
        self._clock = clock
        self._on_change = on_change
        self._members: dict[WorkerId, Member] = {}
        self._memory = Memory()
        self._incarnations = Incarnations()
        self._progress = asyncio.Event()
        """Set when a batch was answered or a worker lost: rows may have moved."""

    # What drivers need

    def send(self, worker_id: WorkerId, batch: Batch) -> None:
        """Queue a batch for a worker."""
        link = self._members[worker_id].link
        assert link is not None
        link.send(batch)

    def release(self, worker_id: WorkerId, sequence_ids: Sequence[SequenceId]) -> None:
        """Let a worker forget sequences."""
        member = self._members.get(worker_id)
        if member is not None and member.link is not None:
            member.link.release(sequence_ids)

    # What workers ask

    def register(self, info: WorkerInfo) -> None:
        """A worker announces itself; a new incarnation replaces the old one.

        Raises:
            IncompatibleWorkerError: it does not fit, or lost its name; status shows why.
        """
        self._require_fit(info)
        known = self._members.get(info.worker_id)
        if known is not None:
            if known.info.incarnation == info.incarnation:
                known.last_heartbeat = self._clock()
                return
            self._remove(known, WorkerState.LOST, "replaced by a new incarnation")
        self._incarnations.note(info.worker_id, info.incarnation)
        member = Member(info, self._clock())
        self._members[info.worker_id] = member
        self._memory.gone.pop(info.worker_id, None)
        self._connect_fitting()
        logger.info("registry.registered worker=%s role=%s", info.worker_id, info.role.value)

    def heartbeat(self, worker_id: WorkerId, incarnation: str) -> HeartbeatAnswer:
        """A sign of life."""
        member = self._find(worker_id, incarnation)
        if member is None:
            return HeartbeatAnswer.REGISTER
        member.last_heartbeat = self._clock()
        if member.state is WorkerState.DRAINING and not member.num_sequences:
            return HeartbeatAnswer.STOP
        return HeartbeatAnswer.GO_ON

    async def leave(self, worker_id: WorkerId, incarnation: str) -> int:
        """Move what a worker holds, then let it go; the number of sequences moved."""
        member = self._find(worker_id, incarnation)
        if member is None:
            return 0
        num_moved = await self._move_rows(member)
        if self._members.get(worker_id) is member:
            self._remove(member, WorkerState.LOST, "left")
        return num_moved

    # What operators ask

    async def drain(self, worker_id: WorkerId) -> int:
        """Move what a worker holds; it is told to stop then. The number of sequences moved.

        Raises:
            InvalidRequestError: no such worker is registered.
        """
        member = self._members.get(worker_id)
        if member is None:
            known = ", ".join(self._members) or "none"
            raise InvalidRequestError(
                f"worker {worker_id!r} is not known; known: {known}", field="worker_id"
            )
        logger.info("registry.draining worker=%s", worker_id)
        return await self._move_rows(member)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Workers in the order they joined, then those that are gone."""
        present = tuple(
            WorkerStatus(
                member.info,
                member.state,
                member.trouble,
                member.num_sequences,
                self._clock() - member.last_heartbeat,
                "" if member.pool is None else member.pool.name,
            )
            for member in self._members.values()
        )
        return (*present, *self._memory.gone.values())

    # Time

    def expire_leases(self) -> None:
        """Workers that were silent for a lease are lost."""
        oldest = self._clock() - self._limits.lease_seconds
        for member in tuple(self._members.values()):
            if member.last_heartbeat < oldest:
                self._remove(member, WorkerState.LOST, "its lease ran out")

    async def close(self) -> None:
        """Close all links."""
        tasks = [member.link_task for member in self._members.values() if member.link_task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Fit

    def _find(self, worker_id: WorkerId, incarnation: str) -> Member | None:
        member = self._members.get(worker_id)
        return member if member is not None and member.info.incarnation == incarnation else None

    def _require_fit(self, info: WorkerInfo) -> None:
        reason = self._pools.misfit(info)
        if self._incarnations.is_replaced(info.worker_id, info.incarnation):
            reason = f"worker id {info.worker_id!r} was taken over by another process"
        if reason is not None:
            self._memory.note(WorkerStatus(info, WorkerState.REFUSED, reason))
            logger.warning("registry.refused worker=%s reason=%s", info.worker_id, reason)
            raise IncompatibleWorkerError(f"worker {info.worker_id} is refused: {reason}")

    def _refuse_misfits(self) -> None:
        """Workers that registered before there was a model to fit."""
        for member in tuple(self._members.values()):
            reason = self._pools.misfit(member.info)
            if reason is not None:
                worker_id = member.info.worker_id
                logger.warning("registry.refused worker=%s reason=%s", worker_id, reason)
                self._remove(member, WorkerState.REFUSED, reason)

    def _connect_fitting(self) -> None:
        """Targets at once; drafts when there is a pool for them."""
        for member in self._members.values():
            is_target = member.info.role is Role.TARGET
            if member.link_task is None and (is_target or self._pools.home_of(member.info)):
                self._connect(member)

    # Links

    def _connect(self, member: Member) -> None:
        async def on_up(channel: grpc.aio.Channel) -> None:
            if self._pools.home_of(member.info) is None:
                await self._define_model(member, channel)
                self._refuse_misfits()
            self._join(member)
            self._connect_fitting()

        def on_down(error: ExspecError) -> None:
            self._leave(member, error)

        def on_reply(reply: Reply) -> None:
            if member.pool is not None:
                member.pool.driver.take_reply(member.info.worker_id, reply)
            self._progress.set()

        member.link = WorkerLink(
            member.info,
            link_kind(member.info.role, self._limits, self._worker_tls),
            LinkEvents(on_up, on_down, on_reply),
        )
        member.link_task = asyncio.create_task(member.link.run())

    async def _define_model(self, member: Member, channel: grpc.aio.Channel) -> None:
        """The first target of a name that answers says what is served under it."""
        stub = target_pb2_grpc.TargetServiceStub(channel)
        message = await stub.GetTokenizer(target_pb2.GetTokenizerRequest())
        assets = tokenizer_from_message(message)
        codec = await asyncio.to_thread(TextCodec, assets)
        self._pools.define(ServedModel(member.info.model, codec))

    def _join(self, member: Member) -> None:
        info, pool = member.info, self._pools.home_of(member.info)
        if member.state is not WorkerState.JOINING or pool is None:
            return
        member.state = WorkerState.READY
        member.pool = pool
        pool.driver.join(
            WorkerJoined(
                info.worker_id, info.role, info.num_slots, info.model.max_length, info.kv_layout
            )
        )
        logger.info("registry.joined worker=%s model=%s", info.worker_id, pool.name)
        self._on_change()

    def _leave(self, member: Member, error: ExspecError) -> None:
        """The link is down; it comes back by itself while the worker keeps its lease."""
        worker_id = member.info.worker_id
        if member.state is WorkerState.READY:
            member.state = WorkerState.JOINING
        pool, member.pool = member.pool, None
        if pool is not None:
            logger.warning("registry.lost worker=%s reason=%s", worker_id, error.message)
            pool.driver.lose(worker_id)
        self._progress.set()
        self._on_change()

    def _remove(self, member: Member, state: WorkerState, reason: str) -> None:
        """Forget a worker for good; its link goes down with it."""
        worker_id = member.info.worker_id
        member.state = state
        self._leave(member, IncompatibleWorkerError(reason))
        if member.link_task is not None:
            member.link_task.cancel()
        if self._members.get(worker_id) is member:
            del self._members[worker_id]
        self._memory.note(WorkerStatus(member.info, state, reason))

    async def _move_rows(self, member: Member) -> int:
        """No new rows from now on; answers, with the number there were, when none is left."""
        num_moved = member.num_sequences
        member.state = WorkerState.DRAINING
        if member.pool is not None:
            member.pool.driver.drain(member.info.worker_id)
        self._on_change()
        while member.num_sequences:
            self._progress.clear()
            await self._progress.wait()
        return num_moved
