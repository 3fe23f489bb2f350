"""Worker processes by fork: the side that asks. They are real processes, started cheaply."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Fork:
    """One forked process. Owns the descriptor that stands for it, whatever becomes of its pid."""

    def __init__(self, pid: int, log_path: Path) -> None:
        self.pid = pid
        self.log_path = log_path
        self._descriptor = os.pidfd_open(pid)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped one runs."""
        return not self.wait(0)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        assert self.wait(30), f"process {self.pid} outlived SIGKILL"


class Zygote:
    """The process that forks. Its forks end with it, and it ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # A pool of threads would not survive a fork.
            ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "tests.chaos.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._asking = threading.Lock()

    def load(self, module: str, arguments: Sequence[str]) -> None:
        """Load the model of workers with these arguments before any is forked."""
        self._ask({"do": "load", "module": module, "arguments": list(arguments)})

    def fork(self, module: str, arguments: Sequence[str], log_path: Path) -> Fork:
        """Start `module` (target_worker or draft_worker) with these arguments."""
        order = {"do": "fork", "module": module, "arguments": list(arguments), "log": str(log_path)}
        return Fork(self._ask(order)["pid"], log_path)

    def exit_codes(self) -> dict[int, int]:
        """Exit codes by pid of all forks that have ended; below 0: the signal that ended it."""
        return {int(pid): code for pid, code in self._ask({"do": "codes"})["codes"].items()}

    def close(self) -> None:
        """End it, and its forks."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the zygote died; its stderr says why")
        return json.loads(answer)
