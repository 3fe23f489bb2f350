"""A cluster of stubs, and `exspec up` over it: run as a module, so that it can be sent signals."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from exspec.cli.cluster import LocalCluster
from exspec.cli.cluster_plan import ClusterPlan
from exspec.core.ids import Role

SERVICE = Path(__file__).with_name("stub_service.py")


@dataclass(frozen=True, slots=True)
class StubPlan(ClusterPlan):
    """Starts stubs. `kinds` says what becomes of a worker: dies, stubborn, else it lives."""

    kinds: tuple[tuple[str, str], ...] = ()

    def coordinator_command(self, port_file):
        names = [f"target-{i}" for i in range(self.num_targets)]
        names += [f"draft-{i}" for i in range(self.num_drafts)]
        return stub("coordinator", ",".join(names), port_file)

    def worker_command(self, role: Role, name, coordinator, port_file):
        return stub(dict(self.kinds).get(name, "worker"), name, port_file)


def stub(kind, names, port_file):
    return [sys.executable, str(SERVICE), kind, names, str(port_file)]


if __name__ == "__main__":
    import typer

    from exspec.cli.common import open_console, tells_errors
    from exspec.cli.up import run_until_stopped, show_progress

    @tells_errors
    def up(log_dir: Path, kinds: str = "", targets: int = 1) -> None:
        console = open_console()
        pairs = tuple(tuple(pair.split("=")) for pair in kinds.split(",") if pair)
        plan = StubPlan(log_dir=log_dir, kinds=pairs, num_targets=targets)
        cluster = LocalCluster(plan, on_progress=lambda step: show_progress(console, step))
        raise typer.Exit(run_until_stopped(cluster, console))

    typer.run(up)
