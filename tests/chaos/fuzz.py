"""`python -m tests.chaos.fuzz`: nonsense to every RPC of every service of a live cluster.

Meanwhile and afterwards an ordinary client must get exact answers. Exit code 1 when a process
ended, hung, logged a bug of ours or kept memory, or a call ended without one of our errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from exspec.client import AsyncClient
from exspec.core.errors import CapacityError, PeerError
from exspec.core.ids import Role
from exspec.runtime.clock import monotonic
from tests.chaos.cluster import ChaosCluster, is_empty, make_plan, until_status
from tests.chaos.forks import Zygote
from tests.chaos.fuzz_calls import (
    Caller,
    Method,
    coordinator_methods,
    problem_of,
    worker_methods,
)
from tests.chaos.models import Pair, Truth, save_pair
from tests.chaos.slots_probe import num_slots_lost
from tests.chaos.soak_memory import MemoryWatch

NUM_CALLERS = 12
CROWD_SECONDS = 2.0
CROWD_SIZE = 1000
CANARY_PROMPT = (11, 250, 17, 64)
CANARY_TOKENS = 24
ALLOWED_MIB = 128.0
"""Messages may have megabytes, and what they took is not given back at once."""
BUG_MARKS = ("rpc.failed", "Traceback", "Unexpected [", "link.failed", "service.tick_failed")
MAX_PROBLEMS = 30
COORDINATOR_FLAGS = ("--max-waiting", "64", "--unavailable-seconds", "5")
"""Waits that are meant to be are over long before a call counts as hanging."""


@dataclass
class Findings:
    """What came of it."""

    num_calls: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)
    """One example for each kind."""
    num_canaries: int = 0
    num_canaries_refused: int = 0

    def note(self, kind: str, example: str) -> None:
        """Something that may not happen."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.setdefault(kind, example)


class Fuzz:
    """One run against one cluster, which it starts."""

    def __init__(self, cluster: ChaosCluster, truth: Truth, seed: int) -> None:
        self._cluster = cluster
        self._expected = truth.tokens(CANARY_PROMPT, CANARY_TOKENS)
        self._seed = seed
        self._memory = MemoryWatch(monotonic)
        self._is_over = asyncio.Event()
        self.findings = Findings()

    async def run(self, seconds: float) -> Findings:
        """Two workers of each role, of which one is called by strangers."""
        for role in Role:
            for index in range(2):
                self._cluster.start_worker(role, f"{role.value}-{index}")
        await self._cluster.until_ready(*self._cluster.workers)
        started = self._pids()
        async with asyncio.TaskGroup() as tasks:
            for index in range(NUM_CALLERS):
                tasks.create_task(self._call(index))
            tasks.create_task(self._crowd())
            tasks.create_task(self._watch())
            await asyncio.sleep(seconds)
            self._is_over.set()
        await self._check_end(started)
        return self.findings

    def _callers(self, index: int) -> list[Caller]:
        """To the coordinator and to one worker of each role."""
        random = Random(f"{self._seed}/{index}")
        workers = [self._cluster.workers[f"{role.value}-1"] for role in Role]
        return [
            Caller(self._cluster.address, coordinator_methods(), random),
            *(Caller(w.address or "", worker_methods(w.role), random) for w in workers),
        ]

    async def _call(self, index: int) -> None:
        callers = self._callers(index)
        random = Random(f"{self._seed}/whom/{index}")
        while not self._is_over.is_set():
            method, sent, ending = await random.choice(callers).call()
            self._note(method, sent, ending)
        for caller in callers:
            await caller.close()

    def _note(self, method: Method, sent: list[bytes], ending: Any) -> None:
        findings = self.findings
        findings.num_calls += 1
        findings.methods[method.path] += 1
        findings.codes["left" if ending.code is None else ending.code.name] += 1
        problem = problem_of(method, sent, ending)
        if problem is not None:
            shown = " ".join(message[:300].hex() for message in sent)
            findings.note(f"{method.path} {problem[:60]}", f"{problem} sent={shown}")

    async def _crowd(self) -> None:
        """Now and then, as many streams at once as nobody should open."""
        callers = self._callers(-1)
        streams = [
            (caller, method)
            for caller in callers
            for method in caller.methods
            if method.descriptor.server_streaming
        ]
        random = Random(f"{self._seed}/crowd")
        while not self._is_over.is_set():
            caller, method = random.choice(streams)
            is_stream = method.descriptor.client_streaming
            sent = [] if is_stream else [caller.fuzzer.draw(method.descriptor.input_type)]
            crowd = (caller.glance(method, sent) for _ in range(CROWD_SIZE))
            for ending in await asyncio.gather(*crowd):
                self._note(method, sent, ending)
            await asyncio.sleep(CROWD_SECONDS)
        for caller in callers:
            await caller.close()

    async def _watch(self) -> None:
        """An ordinary client, and everybody's memory."""
        async with AsyncClient(self._cluster.address, max_retries=5) as client:
            while not self._is_over.is_set():
                await self._canary(client)
                self._memory.sample(self._pids())
                await asyncio.sleep(0.2)

    async def _canary(self, client: AsyncClient) -> None:
        self.findings.num_canaries += 1
        try:
            result = await client.generate(
                CANARY_PROMPT, max_tokens=CANARY_TOKENS, ignore_eos=True, priority=-1000, timeout=60
            )
        except (CapacityError, PeerError):
            self.findings.num_canaries_refused += 1
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.findings.note("canary", repr(error))
            return
        if result.token_ids != self._expected:
            self.findings.note("canary", f"{result.token_ids} is not {self._expected}")

    def _pids(self) -> dict[str, int]:
        """Of all processes that run."""
        coordinator = self._cluster.coordinator
        running = [w for w in self._cluster.workers.values() if w.fork.is_running]
        pids = {worker.name: worker.fork.pid for worker in running}
        return pids | ({"coordinator": coordinator.pid} if coordinator.is_running else {})

    async def _check_end(self, started: dict[str, int]) -> None:
        """Everybody lives, nobody holds anything, and answers are exact."""
        note = self.findings.note
        for name in started.keys() - self._pids().keys():
            note(f"{name} ended", "see its log")
        async with AsyncClient(self._cluster.address) as client:
            try:
                await until_status(client, is_empty)
            except TimeoutError as error:
                note("rows are left", str(error))
            refused = self.findings.num_canaries_refused
            await self._canary(client)
            if self.findings.num_canaries_refused > refused:
                note("canary", "refused when all was over")
        await self._check_slots()
        self._check_logs()
        for growth in self._memory.growths(self._pids()):
            if growth.grown_mib > ALLOWED_MIB:
                note(f"{growth.name} memory", f"grew by {growth.grown_mib:.0f} MiB")

    async def _check_slots(self) -> None:
        num_slots = self._cluster.plan.max_num_seqs or 0
        for worker in self._cluster.workers.values():
            if worker.fork.is_running:
                lost = await num_slots_lost(worker.address or "", worker.role, num_slots)
                if lost:
                    self.findings.note(f"{worker.name} slots", f"{lost} of {num_slots} are lost")

    def _check_logs(self) -> None:
        """A bug of ours is logged."""
        assert self._cluster.plan.log_dir is not None
        for path in sorted(self._cluster.plan.log_dir.glob("*.log")):
            for line in path.read_text(errors="replace").splitlines():
                if any(mark in line for mark in BUG_MARKS):
                    self.findings.note(f"{path.name}", line[:500])


async def fuzz(pair: Pair, folder: Path, seconds: float, seed: int) -> Findings:
    """Make a cluster, fuzz it, take it down."""
    with Zygote() as zygote:
        plan = make_plan(pair, folder, coordinator_flags=COORDINATOR_FLAGS)
        cluster = ChaosCluster(plan, zygote)
        cluster.preload()
        async with cluster:
            return await Fuzz(cluster, Truth(pair), seed).run(seconds)


def main(argv: list[str]) -> int:
    """Run and report; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn from")
    parser.add_argument("--json", type=Path, help="file to write the findings to")
    arguments = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="exspec-fuzz-"))
    console = Console()
    console.print(f"seed {arguments.seed}; logs in {folder}")
    found = asyncio.run(fuzz(save_pair(folder), folder, 60 * arguments.minutes, arguments.seed))
    report = {
        "seed": arguments.seed, "calls": found.num_calls, "codes": dict(found.codes),
        "methods": dict(found.methods), "canaries": found.num_canaries,
        "canaries refused": found.num_canaries_refused, "problems": found.problems,
    }  # fmt: skip
    console.print_json(data=report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
