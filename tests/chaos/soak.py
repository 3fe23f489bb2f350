"""`python -m tests.chaos.soak`: many clients for many minutes while everything goes wrong.

Exit code 1 if an output was wrong, a request was lost, memory grew, a row leaked or a worker
crashed; 0 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from rich.console import Console
from rich.live import Live
from rich.table import Table

from exspec.client import AsyncClient
from exspec.runtime.clock import monotonic
from tests.chaos.cluster import ChaosCluster, is_empty, make_plan, until_status
from tests.chaos.forks import Zygote
from tests.chaos.models import Truth, save_pair
from tests.chaos.slots_probe import num_slots_lost
from tests.chaos.soak_clients import LOST_SECONDS, Clients
from tests.chaos.soak_memory import MemoryWatch
from tests.chaos.soak_orders import Catalog
from tests.chaos.soak_report import Report, memory_table, progress_table
from tests.chaos.soak_trouble import Trouble

SAMPLE_SECONDS = 2.0
CLUSTER = {
    "max_num_seqs": 8,
    "num_speculative_tokens": "auto",
    "coordinator_flags": ("--max-waiting", "256", "--lease-seconds", "5"),
}


class Soak:
    """One run: a cluster, its clients, its troubles, and what is measured of them."""

    def __init__(
        self, arguments: argparse.Namespace, cluster: ChaosCluster, zygote: Zygote
    ) -> None:
        self._arguments = arguments
        self._cluster = cluster
        self._memory = MemoryWatch(monotonic)
        self._trouble = Trouble(cluster, zygote, Random(f"{arguments.seed}/trouble"))
        self._started = monotonic()

    async def run(self, catalog: Catalog, show: Callable[[Table], None]) -> Report:
        """All of it; the report."""
        await self._trouble.start()
        await self._cluster.until_ready(*self._cluster.workers)
        self._started = monotonic()
        arguments = self._arguments
        clients = Clients(self._cluster.address, arguments.clients, catalog, arguments.seed)
        asking = asyncio.create_task(clients.run())
        happening = [asyncio.create_task(self._trouble.run(arguments.period))]
        if arguments.restart_coordinator:
            restarting = self._trouble.restart_coordinator(arguments.restart_coordinator)
            happening.append(asyncio.create_task(restarting))
        await self._watch(clients, [*happening, asking], show)
        await _cancel(happening)
        await self._trouble.mend()
        clients.stop()
        problems = self._trouble.problems
        try:
            async with asyncio.timeout(2 * LOST_SECONDS):
                await asking
        except TimeoutError:
            problems.append("clients did not end")
        growths = self._memory.growths(self._pids())
        problems += await self._leaks()
        await self._trouble.close()
        seconds = monotonic() - self._started
        return Report(
            arguments.seed, seconds, clients.tally, self._trouble.counts, growths, problems
        )

    async def _watch(
        self, clients: Clients, tasks: list[asyncio.Task[None]], show: Callable[[Table], None]
    ) -> None:
        """Sample and show until time is up; a task that fails ends the run."""
        minutes = self._arguments.minutes
        while (seconds := monotonic() - self._started) < 60 * minutes:
            self._memory.sample(self._pids())
            show(progress_table(clients.tally, self._trouble.counts, seconds, minutes))
            done, _ = await asyncio.wait(tasks, timeout=SAMPLE_SECONDS)
            for task in done:
                task.result()

    def _pids(self) -> dict[str, int]:
        return {
            "soak": os.getpid(),
            "coordinator": self._cluster.coordinator.pid,
            **self._trouble.pids,
        }

    async def _leaks(self) -> list[str]:
        """Rows left anywhere once every request has ended."""
        problems = []
        async with AsyncClient(self._cluster.address) as client:
            try:
                await until_status(client, is_empty)
            except TimeoutError as error:
                problems.append(f"the coordinator holds rows: {error}")
        num_slots = self._cluster.plan.max_num_seqs or 0
        for worker in self._cluster.workers.values():
            lost = await num_slots_lost(worker.address or "", worker.role, num_slots)
            if lost:
                problems.append(f"{worker.name}: {lost} of {num_slots} slots are lost")
        return problems


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def soak(arguments: argparse.Namespace, folder: Path, console: Console) -> Report:
    """Make everything, run it, take it down."""
    pair = save_pair(folder)
    console.print(f"seed {arguments.seed}; logs in {folder}")
    catalog = Catalog(pair, Truth(pair), Random(f"{arguments.seed}/samples"))
    with Zygote() as zygote:
        cluster = ChaosCluster(make_plan(pair, folder, **CLUSTER), zygote)
        cluster.preload()
        async with cluster:
            with Live(console=console, refresh_per_second=1) as live:
                return await Soak(arguments, cluster, zygote).run(catalog, live.update)


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--clients", type=int, default=64, help="how many at once")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn from")
    parser.add_argument(
        "--period", type=float, default=20.0, help="seconds between troubles of each role"
    )
    parser.add_argument(
        "--restart-coordinator",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="seconds between restarts of the coordinator; 0: never",
    )
    parser.add_argument("--json", type=Path, help="file to write the report to")
    parser.add_argument("--logs", type=Path, help="folder of the logs; default: a new one")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run and report; 1 if anything was violated."""
    arguments = parse(argv)
    logging.basicConfig(level="ERROR")
    console = Console()
    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="exspec-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    report = asyncio.run(soak(arguments, folder, console))
    console.print(memory_table(report.growths))
    for detail in report.tally.problems:
        console.print(f"[red]{detail[:500]}", markup=True, highlight=False)
    for violation in report.violations:
        console.print(f"[red]violated: {violation}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    console.print("nothing was violated" if not report.violations else "[red]failed")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
