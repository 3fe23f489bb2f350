"""The workers: who registered, who fits, who is connected, whose lease ran out.

It owns the links and the model that is served, and tells the driver who joined and who is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc.aio

from coordinator.driver import Driver
from coordinator.links import (
    Batch,
    LinkEvents,
    LinkKind,
    Reply,
    WorkerLink,
    exchange_drafts,
    exchange_verifies,
    release_drafts,
    release_verifies,
)
from coordinator.members import Member, Memory, PoolLimits, ServedModel
from coordinator.scheduler.events import WorkerJoined
from coordinator.text import TextCodec
from exspec.core.cluster import WorkerInfo, WorkerState, WorkerStatus
from exspec.core.errors import ExspecError, IncompatibleWorkerError
from exspec.core.ids import Role, SequenceId, WorkerId
from exspec.core.models import misfit
from exspec.runtime.clock import Clock
from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.convert_model import tokenizer_from_message
from exspec.wire.tls import TlsConfig

logger = logging.getLogger(__name__)


class WorkerPool:
    """Owns the registered workers. `attach` the driver before the first registration."""

    def __init__(
        self, limits: PoolLimits, clock: Clock, worker_tls: TlsConfig | None = None
    ) -> None:
        self._limits = limits
        self._worker_tls = worker_tls
        self._clock = clock
        self._members: dict[WorkerId, Member] = {}
        self._memory = Memory()
        self._driver: Driver | None = None
        self._progress = asyncio.Event()
        """Set when a batch was answered or a worker lost: rows may have moved."""
        self._on_change: Callable[[], None] = lambda: None
        self.model: ServedModel | None = None
        """None until a target is connected."""

    def attach(self, driver: Driver, on_change: Callable[[], None]) -> None:
        """Whom to tell; `on_change` is called when a worker became ready or ceased to be."""
        self._driver = driver
        self._on_change = on_change

    # What the driver needs

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
            IncompatibleWorkerError: it does not fit the cluster; status shows why.
        """
        self._require_fit(info)
        known = self._members.get(info.worker_id)
        if known is not None:
            if known.info.incarnation == info.incarnation:
                known.last_heartbeat = self._clock()
                return
            self._remove(known, WorkerState.LOST, "replaced by a new incarnation")
        member = Member(info, self._clock())
        self._members[info.worker_id] = member
        self._memory.gone.pop(info.worker_id, None)
        self._connect_fitting()
        logger.info("pool.registered worker=%s role=%s", info.worker_id, info.role.value)

    def heartbeat(self, worker_id: WorkerId, incarnation: str) -> bool:
        """A sign of life; False if this incarnation is not known."""
        member = self._members.get(worker_id)
        if member is None or member.info.incarnation != incarnation:
            return False
        member.last_heartbeat = self._clock()
        return True

    async def drain(self, worker_id: WorkerId, incarnation: str) -> int:
        """Move what a worker holds, then let it go; the number of sequences moved."""
        member = self._members.get(worker_id)
        if member is None or member.info.incarnation != incarnation:
            return 0
        num_moved = self._require_driver().scheduler.rows_on(worker_id)
        member.state = WorkerState.DRAINING
        if member.is_member:
            self._require_driver().drain(worker_id)
        while member.is_member and self._require_driver().scheduler.rows_on(worker_id):
            self._progress.clear()
            await self._progress.wait()
        if self._members.get(worker_id) is member:
            self._remove(member, WorkerState.LOST, "left")
        return num_moved

    # What operators ask

    @property
    def has_target(self) -> bool:
        """Whether a connected target takes rows."""
        return any(
            member.info.role is Role.TARGET and member.state is WorkerState.READY
            for member in self._members.values()
        )

    @property
    def max_length(self) -> int:
        """The longest sequence a connected target can hold; 0 without one."""
        lengths = [
            member.info.model.max_length
            for member in self._members.values()
            if member.info.role is Role.TARGET and member.state is WorkerState.READY
        ]
        return max(lengths, default=0)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Workers in the order they joined, then those that are gone."""
        scheduler = self._require_driver().scheduler
        present = tuple(
            WorkerStatus(
                member.info,
                member.state,
                member.trouble,
                scheduler.rows_on(member.info.worker_id) if member.is_member else 0,
                self._clock() - member.last_heartbeat,
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

    def _require_fit(self, info: WorkerInfo) -> None:
        reason = self._misfit(info)
        if reason is not None:
            self._memory.note(WorkerStatus(info, WorkerState.REFUSED, reason))
            logger.warning("pool.refused worker=%s reason=%s", info.worker_id, reason)
            raise IncompatibleWorkerError(f"worker {info.worker_id} is refused: {reason}")

    def _misfit(self, info: WorkerInfo) -> str | None:
        if self.model is None:
            return None
        served = self.model.facts
        if info.role is Role.DRAFT:
            return misfit(info.model, served)
        if info.model.fingerprint != served.fingerprint:
            return (
                f"target model {info.model.name!r} ({info.model.dtype}, fingerprint "
                f"{info.model.fingerprint[:12]}) is not the served model {served.name!r} "
                f"({served.dtype}, fingerprint {served.fingerprint[:12]})"
            )
        return None

    def _refuse_misfits(self) -> None:
        """Workers that registered before there was a model to fit."""
        for member in tuple(self._members.values()):
            reason = self._misfit(member.info)
            if reason is not None:
                logger.warning("pool.refused worker=%s reason=%s", member.info.worker_id, reason)
                self._remove(member, WorkerState.REFUSED, reason)

    def _connect_fitting(self) -> None:
        """Targets at once; drafts when there is a target to fit."""
        for member in self._members.values():
            may_connect = member.info.role is Role.TARGET or self.model is not None
            if may_connect and member.link_task is None:
                self._connect(member)

    # Links

    def _connect(self, member: Member) -> None:
        async def on_up(channel: grpc.aio.Channel) -> None:
            if member.info.role is Role.TARGET and self.model is None:
                await self._define_model(member, channel)
            self._refuse_misfits()
            self._join(member)
            self._connect_fitting()

        def on_down(error: ExspecError) -> None:
            self._leave(member, error)

        def on_reply(reply: Reply) -> None:
            self._require_driver().take_reply(member.info.worker_id, reply)
            self._progress.set()

        member.link = WorkerLink(
            member.info,
            self._link_kind(member.info.role),
            LinkEvents(on_up, on_down, on_reply),
        )
        member.link_task = asyncio.create_task(member.link.run())

    def _link_kind(self, role: Role) -> LinkKind:
        limits, tls = self._limits, self._worker_tls
        if role is Role.TARGET:
            return LinkKind(exchange_verifies, release_verifies, limits.target_timeout_seconds, tls)
        return LinkKind(exchange_drafts, release_drafts, limits.draft_timeout_seconds, tls)

    async def _define_model(self, member: Member, channel: grpc.aio.Channel) -> None:
        """The first target that answers says what the cluster serves."""
        stub = target_pb2_grpc.TargetServiceStub(channel)
        message = await stub.GetTokenizer(target_pb2.GetTokenizerRequest())
        assets = tokenizer_from_message(message)
        codec = await asyncio.to_thread(TextCodec, assets)
        if self.model is None:
            self.model = ServedModel(member.info.model, codec)

    def _join(self, member: Member) -> None:
        if member.state is not WorkerState.JOINING:
            return
        member.state = WorkerState.READY
        member.is_member = True
        self._require_driver().join(
            WorkerJoined(
                member.info.worker_id,
                member.info.role,
                member.info.num_slots,
                member.info.model.max_length,
                member.info.kv_layout,
            )
        )
        logger.info("pool.joined worker=%s", member.info.worker_id)
        self._on_change()

    def _leave(self, member: Member, error: ExspecError) -> None:
        """The link is down; it comes back by itself while the worker keeps its lease."""
        if member.state is WorkerState.READY:
            member.state = WorkerState.JOINING
        if member.is_member:
            member.is_member = False
            logger.warning("pool.lost worker=%s reason=%s", member.info.worker_id, error.message)
            self._require_driver().lose(member.info.worker_id)
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

    def _require_driver(self) -> Driver:
        assert self._driver is not None
        return self._driver
