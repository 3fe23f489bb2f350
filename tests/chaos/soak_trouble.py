"""What happens to the cluster during a soak: workers die, leave, stall and come, networks fail.

One target is never touched, so that a request that waits long enough is served.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from exspec.core.ids import Role
from tests.chaos.cluster import ChaosCluster, Worker, until
from tests.chaos.forks import Zygote
from tests.chaos.tcp_proxy import TcpProxy, Weather

MOST_WORKERS = {Role.TARGET: 3, Role.DRAFT: 3}
LEAVE_SECONDS = 60.0
"""A worker that was told to leave is gone after that: it drains for 30 seconds at most."""
LONGEST_SPELL_SECONDS = 15.0
"""Longer than a lease."""
KILLED = {-signal.SIGKILL, 0}


class Trouble:
    """Owns the workers of a cluster and what stands between them and the coordinator."""

    def __init__(self, cluster: ChaosCluster, zygote: Zygote, random: Random) -> None:
        self._cluster = cluster
        self._zygote = zygote
        self._random = random
        self._proxies: dict[str, TcpProxy] = {}
        self._busy = set[str]()
        """Workers to which something is happening."""
        self.counts = Counter[str]()
        self.problems: list[str] = []

    async def start(self) -> None:
        """All workers there may be; every other one behind a proxy."""
        for role, number in MOST_WORKERS.items():
            for index in range(number):
                name = f"{role.value}-{index}"
                if index % 2:
                    self._proxies[name] = TcpProxy()
                    await self._proxies[name].start()
                await self._start_worker(name, role)

    async def run(self, period_seconds: float) -> None:
        """Something happens to one worker of each role every period, until cancelled."""
        async with asyncio.TaskGroup() as happenings:
            while True:
                await asyncio.sleep(period_seconds)
                for role in MOST_WORKERS:
                    happenings.create_task(self._happen(role, period_seconds))

    async def restart_coordinator(self, period_seconds: float) -> None:
        """Kill the coordinator every period and start it again, until cancelled."""
        while True:
            await asyncio.sleep(period_seconds)
            number = self._random.choice([signal.SIGKILL, signal.SIGTERM])
            self.counts[f"coordinator {number.name}"] += 1
            self._cluster.coordinator.send(number)
            await until(lambda: not self._cluster.coordinator.is_running)
            await self._cluster.start()

    async def mend(self) -> None:
        """Everything is well again, and everybody there."""
        for proxy in self._proxies.values():
            proxy.set_weather(Weather.CLEAR)
        for worker in self._cluster.workers.values():
            worker.fork.send(signal.SIGCONT)
        for name, worker in tuple(self._cluster.workers.items()):
            if not worker.fork.is_running:
                await self._start_worker(name, worker.role)
        await self._cluster.until_ready(*self._cluster.workers)
        self._check_ends()

    async def close(self) -> None:
        """No proxies are left."""
        for proxy in self._proxies.values():
            await proxy.close()

    @property
    def pids(self) -> dict[str, int]:
        """Of workers that run."""
        workers = self._cluster.workers.values()
        return {worker.name: worker.fork.pid for worker in workers if worker.fork.is_running}

    async def _happen(self, role: Role, period_seconds: float) -> None:
        names = [w.name for w in self._cluster.workers.values() if w.role is role]
        spared = f"{Role.TARGET.value}-0"
        idle = [name for name in names if name != spared and name not in self._busy]
        if not idle:
            return
        name = self._random.choice(idle)
        happenings: list[Callable[[Worker, float], Awaitable[None]]] = [
            self._kill, self._leave, self._stall,
        ]  # fmt: skip
        if name in self._proxies:
            happenings += [self._cut_off, self._cut_off]
        self._busy.add(name)
        spell = self._random.uniform(0.1, min(LONGEST_SPELL_SECONDS, 2 * period_seconds))
        await self._random.choice(happenings)(self._cluster.workers[name], spell)
        self._busy.discard(name)

    async def _kill(self, worker: Worker, spell: float) -> None:
        self.counts["SIGKILL"] += 1
        worker.fork.kill()
        await asyncio.sleep(spell / 4)
        await self._start_worker(worker.name, worker.role)

    async def _leave(self, worker: Worker, spell: float) -> None:
        self.counts["SIGTERM"] += 1
        worker.fork.send(signal.SIGTERM)
        try:
            await until(lambda: not worker.fork.is_running, LEAVE_SECONDS)
        except TimeoutError:
            self.problems.append(f"{worker.name} did not leave within {LEAVE_SECONDS:g} s")
            worker.fork.kill()
        await asyncio.sleep(spell / 4)
        await self._start_worker(worker.name, worker.role)

    async def _stall(self, worker: Worker, spell: float) -> None:
        self.counts["SIGSTOP"] += 1
        worker.fork.send(signal.SIGSTOP)
        await asyncio.sleep(spell)
        worker.fork.send(signal.SIGCONT)

    async def _cut_off(self, worker: Worker, spell: float) -> None:
        proxy = self._proxies[worker.name]
        happening = self._random.choice([*Weather, proxy.reset, proxy.vanish])
        if isinstance(happening, Weather):
            self.counts[happening.value] += 1
            proxy.set_weather(happening)
            await asyncio.sleep(spell)
            proxy.set_weather(Weather.CLEAR)
        else:
            self.counts[happening.__name__] += 1
            happening()

    async def _start_worker(self, name: str, role: Role) -> None:
        proxy = self._proxies.get(name)
        flags = ("--advertise", proxy.address) if proxy else ()
        worker = self._cluster.start_worker(role, name, *flags)
        await until(lambda: worker.address or not worker.fork.is_running)
        if proxy is not None:
            proxy.upstream = worker.address

    def _check_ends(self) -> None:
        """Whoever ended was killed, or left with 0."""
        for pid, code in self._zygote.exit_codes().items():
            if code not in KILLED:
                self.problems.append(f"a worker (pid {pid}) ended with code {code}")
