"""A worker process in miniature: the real services over loopback gRPC, a toy model behind them."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bell import Bell
from toy import ToyRunner, facts

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.servicer import DraftServicer
from exspec.core.cluster import WorkerInfo
from exspec.core.ids import Role, WorkerId
from exspec.core.models import TokenizerAssets
from exspec.runtime.clock import monotonic
from exspec.runtime.worker_thread import WorkerThread
from exspec.v1 import draft_pb2_grpc, target_pb2_grpc
from exspec.wire.registration import Registration
from exspec.wire.server import RpcServer
from exspec.wire.tls import TlsConfig
from target_worker.servicer import TargetServicer
from target_worker.verifier import Verifier

Tamper = Callable[[Any], Any]
NO_TOKENIZER = TokenizerAssets("")


class _Target(TargetServicer):
    tamper: Tamper

    async def Verify(self, request_iterator, context):
        async with contextlib.aclosing(super().Verify(request_iterator, context)) as replies:
            async for reply in replies:
                yield self.tamper(reply)


class _Draft(DraftServicer):
    tamper: Tamper
    note: Callable[[Sequence[str]], Awaitable[None]]

    async def Draft(self, request_iterator, context):
        async def noted():
            async for request in request_iterator:
                await self.note([entry.key.sequence_id for entry in request.entries])
                yield request

        async with contextlib.aclosing(super().Draft(noted(), context)) as replies:
            async for reply in replies:
                yield self.tamper(reply)


class FakeWorker:
    """A worker process in miniature. `runner` is its model, `tamper` falsifies its replies."""

    def __init__(
        self, role: Role, name: str, runner: ToyRunner, bell: Bell, num_ahead: int = 0
    ) -> None:
        self.role = role
        self.name = name
        self.runner = runner
        self.incarnation = f"{name}-1"
        self.model = facts(max_length=runner.capacity, vocab_size=runner.facts.vocab_size)
        self.num_slots = runner.num_slots
        self.kv_layout = "slots"
        self.draft_for = ""
        self.asked: list[str] = []
        """Sequences a draft worker was sent entries for, in the order they came."""
        self.hold: Callable[[Sequence[str]], Awaitable[None]] | None = None
        """Holds a draft worker's batches up, by the sequences in them."""
        self.tokenizer = NO_TOKENIZER
        self._thread = WorkerThread(name)
        self._bell = bell
        if role is Role.TARGET:
            self.sessions: Verifier | Drafter = Verifier(runner, monotonic, orphan_seconds=600)
        else:
            self.sessions = Drafter(
                ModelProposer(runner), monotonic, orphan_seconds=600, num_ahead=num_ahead
            )
        runner.on_release = bell.ring
        self._server: RpcServer | None = None
        self.servicer: TargetServicer | DraftServicer | None = None
        self.address = ""
        self.tamper: Tamper = lambda reply: reply
        self._keeping: asyncio.Task[None] | None = None
        self.coordinator_tls: TlsConfig | None = None
        self.registration: Registration | None = None

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(
            WorkerId(self.name),
            self.incarnation,
            self.role,
            self.address,
            self.num_slots,
            self.model,
            self.kv_layout,
            draft_for=self.draft_for,
        )

    async def listen(self, port: int = 0) -> None:
        """Serve, on the port it had before if told so."""
        server, self.address = self.open_server(port)
        if self.role is Role.TARGET:
            target = _Target(self._thread, monotonic, self.incarnation)
            target.tamper = self._falsify
            self.servicer = target
            target.open(self.sessions, self.tokenizer)  # type: ignore[arg-type]
            target_pb2_grpc.add_TargetServiceServicer_to_server(target, server.grpc_server)
        else:
            draft = _Draft(self._thread, monotonic, self.incarnation)
            draft.tamper = self._falsify
            draft.note = self._note
            self.servicer = draft
            draft.open(self.sessions)  # type: ignore[arg-type]
            draft_pb2_grpc.add_DraftServiceServicer_to_server(draft, server.grpc_server)
        await server.start()
        self._server = server

    def open_server(self, port: int) -> tuple[RpcServer, str]:
        """A bound server, in plain text."""
        server = RpcServer(["exspec.v1.TargetService", "exspec.v1.DraftService"])
        return server, server.bind("127.0.0.1", port, allow_insecure=False)

    def register(self, coordinator: str) -> asyncio.Task[None]:
        """Keep it registered; the task ends if it is refused."""
        self.registration = Registration(coordinator, self.info, self.coordinator_tls)
        self._keeping = asyncio.create_task(self.registration.keep())
        return self._keeping

    async def break_stream(self) -> None:
        """All its connections break; it stays registered and comes back on the same port."""
        assert self._server is not None
        await self._server.stop(0)
        await self.listen(int(self.address.rpartition(":")[2]))

    async def hush(self) -> None:
        """No more heartbeats; the stream stays."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def kill(self) -> None:
        """As kill -9: no drain, connections reset."""
        await self.hush()
        if self._server is not None:
            await self._server.stop(0)
        self.runner.gate.set()
        self._thread.close()
        if self.registration is not None:
            await self.registration._channel.close()

    async def leave(self) -> None:
        """As SIGTERM: drain, then stop."""
        await self.hush()
        assert self.registration is not None
        await self.registration.leave()
        await self.kill()

    async def _note(self, names: Sequence[str]) -> None:
        self.asked.extend(names)
        if self.hold is not None:
            await self.hold(names)

    def _falsify(self, reply: Any) -> Any:
        self._bell.ring()
        return self.tamper(reply)


async def held(worker: FakeWorker) -> None:
    """Wait until the worker sits in a pass that does not end."""
    worker.runner.entered.clear()
    worker.runner.gate.clear()
    assert await asyncio.to_thread(worker.runner.entered.wait, 10)
