"""SIGKILL at an exact place of a generation: which round, whose process, idle or in the middle.

Proxies in front of the workers count the rounds, so no clock decides what is hit:

- in the middle: the worker was handed the request and answered it; the answer is withheld and the
  worker killed, so it dies with work that nobody heard of;
- idle: the other role was just asked, and that request is held until the worker is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from exspec.client import AsyncClient
from exspec.client.results import GenerationResult
from exspec.core.ids import Role
from exspec.v1 import draft_pb2, target_pb2
from tests.chaos.cluster import ChaosCluster, is_empty, until, until_status
from tests.chaos.message_proxy import Direction, MessageProxy, Tap
from tests.chaos.slots_probe import num_slots_lost

PROMPT = (11, 250, 17, 64, 9, 9, 103)
NUM_TOKENS = 96
"""Enough for 40 rounds with drafts, whatever a draft got right or was too late for."""
MAX_TRIES = 5
"""Generations until one has the wanted round: a draft that is late is left out."""
WORKERS_PER_ROLE = 2


class Phase(Enum):
    """What a worker does when it is killed."""

    IDLE = "idle"
    MID_PASS = "mid-pass"


@dataclass(frozen=True, slots=True)
class Strike:
    """Kill a role's home worker in round `index`, counted in the requests it is told by."""

    role: Role
    phase: Phase
    index: int

    @property
    def counted(self) -> Role:
        """Whose requests say when: its own in the middle of a pass, the other's while idle."""
        if self.phase is Phase.MID_PASS:
            return self.role
        return Role.DRAFT if self.role is Role.TARGET else Role.TARGET


class Conductor:
    """Sees every message of the one running sequence. Owns the counts and the strike to come."""

    def __init__(self, kill: Callable[[str], None]) -> None:
        self._kill = kill
        self._strike: Strike | None = None
        self._withheld: int | None = None
        self.counts = dict.fromkeys(Role, 0)
        """Requests with drafts or decisions to make, by role."""
        self.homes: dict[Role, str] = {}
        self._unanswered: dict[str, set[int]] = {}
        """Ids of the rounds' batches that a worker has not answered."""
        self.struck = ""
        """The worker that was killed, once it was."""

    def prepare(self, strike: Strike | None) -> None:
        """A new generation begins; during it, this happens."""
        self._strike = strike
        self._withheld = None
        self.counts = dict.fromkeys(Role, 0)
        self.homes = {role: f"{role.value}-0" for role in Role}
        self._unanswered.clear()
        self.struck = ""

    def tap(self, name: str, role: Role) -> Tap:
        """For the proxy of a worker."""

        async def decide(method: str, direction: Direction, message: bytes) -> tuple[float, ...]:
            if method.endswith("GetTokenizer"):
                return (0.0,)
            if direction is Direction.REQUEST:
                self._note_request(name, role, message)
                return (0.0,)
            return self._note_reply(name, role, message)

        return decide

    def _note_request(self, name: str, role: Role, message: bytes) -> None:
        request = _parse(role, message)
        if not _is_round(role, request):
            return
        self.homes[role] = name
        self._unanswered.setdefault(name, set()).add(request.batch_id)
        is_due = self._is_due(role)
        self.counts[role] += 1
        if is_due and self._strike is not None and self._strike.phase is Phase.IDLE:
            self._hit(self.homes[self._strike.role])
        elif is_due:
            self._withheld = request.batch_id

    def _note_reply(self, name: str, role: Role, message: bytes) -> tuple[float, ...]:
        kind = target_pb2.VerifyResponse if role is Role.TARGET else draft_pb2.DraftResponse
        batch_id = kind.FromString(message).batch_id
        if self._strike is None or self._strike.role is not role or batch_id != self._withheld:
            self._unanswered.get(name, set()).discard(batch_id)
            return (0.0,)
        self._withheld = None
        self._hit(name)
        return ()

    def _is_due(self, role: Role) -> bool:
        """Whether this request is the one, or the first after it that finds the victim idle."""
        strike = self._strike
        if strike is None or strike.counted is not role or self.counts[role] < strike.index:
            return False
        if self.struck or self._withheld is not None:
            return False
        is_idle = not self._unanswered.get(self.homes[strike.role])
        return strike.phase is Phase.MID_PASS or is_idle

    def _hit(self, name: str) -> None:
        self.struck = name
        self._kill(name)


def _parse(role: Role, message: bytes) -> target_pb2.VerifyRequest | draft_pb2.DraftRequest:
    kind = target_pb2.VerifyRequest if role is Role.TARGET else draft_pb2.DraftRequest
    return kind.FromString(message)


def _is_round(role: Role, request: target_pb2.VerifyRequest | draft_pb2.DraftRequest) -> bool:
    if isinstance(request, draft_pb2.DraftRequest):
        return any(entry.num_draft_tokens for entry in request.entries)
    return any(not entry.is_prefill for entry in request.entries)


class KillRange:
    """A cluster in which every worker stands behind a proxy, and is replaced when it was killed."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._conductor = Conductor(self._kill)
        self._proxies: dict[str, MessageProxy] = {}
        self._reviving: list[asyncio.Task[None]] = []

    async def start(self, stack: AsyncExitStack) -> None:
        """Two workers of each role."""
        for role in Role:
            for number in range(WORKERS_PER_ROLE):
                name = f"{role.value}-{number}"
                proxy = MessageProxy(self._conductor.tap(name, role))
                self._proxies[name] = await stack.enter_async_context(proxy)
                await self._start_worker(name, role)
        await self._cluster.until_ready(*self._proxies)

    async def generate(
        self, client: AsyncClient, strike: Strike | None = None, **sampling: Any
    ) -> GenerationResult:
        """One generation, struck or not; afterwards all workers are there again, and empty."""
        for _ in range(MAX_TRIES):
            self._conductor.prepare(strike)
            result = await client.generate(
                PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, **sampling
            )
            if strike is None or self._conductor.struck:
                break
        else:
            raise AssertionError(f"nothing was hit: {strike}")
        await asyncio.gather(*self._reviving)
        self._reviving.clear()
        await self._cluster.until_ready(*self._proxies)
        await until_status(client, is_empty)
        return result

    @property
    def address(self) -> str:
        """host:port of the coordinator."""
        return self._cluster.address

    @property
    def num_rounds(self) -> dict[Role, int]:
        """Rounds of the last generation, by whose requests they are counted."""
        return self._conductor.counts

    async def check_slots(self) -> None:
        """No worker holds anything, by its own account."""
        for worker in self._cluster.workers.values():
            num_slots = self._cluster.plan.max_num_seqs or 0
            lost = await num_slots_lost(worker.address or "", worker.role, num_slots)
            assert not lost, f"{worker.name}: {lost} of {num_slots} slots are lost"

    def _kill(self, name: str) -> None:
        worker = self._cluster.workers[name]
        worker.fork.kill()
        self._proxies[name].upstream = None
        self._reviving.append(asyncio.create_task(self._start_worker(name, worker.role)))

    async def _start_worker(self, name: str, role: Role) -> None:
        proxy = self._proxies[name]
        worker = self._cluster.start_worker(role, name, "--advertise", proxy.address)
        await until(lambda: worker.address)
        proxy.upstream = worker.address


@asynccontextmanager
async def kill_range(cluster: ChaosCluster) -> AsyncIterator[KillRange]:
    """The cluster started, and at the end stopped."""
    async with cluster, AsyncExitStack() as stack:
        made = KillRange(cluster)
        await made.start(stack)
        yield made
