"""A local cluster whose workers are forks of a process that holds torch: real, but soon there.

For tests of what workers do, not of how they start.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from exspec.cli.child import Child
from exspec.cli.cluster import LocalCluster
from exspec.cli.cluster_plan import ClusterPlan
from tests.chaos.forks import Fork, Zygote

_NUM_COMMAND_WORDS = 4
"""Of a worker's command line before its flags: python -P -m MODULE."""
_NGRAM = "ngram"


class ForkedChild(Child):
    """A worker that the zygote forks."""

    def __init__(self, child: Child, zygote: Zygote) -> None:
        super().__init__(child.name, child.role, child.log_path.parent)
        self._zygote = zygote
        self._fork: Fork | None = None

    def start(self, command: Sequence[str]) -> None:
        """Fork it, its model loaded."""
        module, flags = command[_NUM_COMMAND_WORDS - 1], command[_NUM_COMMAND_WORDS:]
        self.port_file.unlink(missing_ok=True)
        if _NGRAM not in flags:
            self._zygote.load(module, flags)
        self._fork = self._zygote.fork(module, flags, self.log_path)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._fork is not None
        return self._fork.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self.is_running else self._zygote.exit_codes()[self.pid]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._fork is not None and self._fork.is_running

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        assert self._fork is not None
        self._fork.send(number)


class ForkedCluster(LocalCluster):
    """Starts the coordinator as ever, and workers by fork."""

    def __init__(self, plan: ClusterPlan, zygote: Zygote) -> None:
        super().__init__(plan)
        self._zygote = zygote

    def _start(self, child: Child, command: list[str]) -> None:
        worker = child if child.role is None else ForkedChild(child, self._zygote)
        super()._start(worker, command)


def run_worker(zygote: Zygote, module: str, flags: Sequence[str], log: Path) -> tuple[int, str]:
    """A worker that ends by itself: its exit code, and what it said."""
    fork = zygote.fork(module, flags, log)
    assert fork.wait(120), "it did not end"
    return zygote.exit_codes()[fork.pid], log.read_text()
