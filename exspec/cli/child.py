"""One child process of a local cluster: its start, its log, its port file, its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from exspec.core.errors import WorkerLostError
from exspec.core.ids import Role

TAIL_LINES = 20


class ChildDiedError(WorkerLostError):
    """A process of the cluster ended when it should not have. `log_tail` are its last lines."""

    def __init__(self, name: str, exit_code: int, log_tail: str, log_path: Path) -> None:
        last = log_tail.rsplit("\n", 1)[-1].strip() or "its log is empty"
        super().__init__(f"{name} ended with {describe_exit(exit_code)}: {last}")
        self.name = name
        self.exit_code = exit_code
        self.log_tail = log_tail
        self.log_path = log_path


class Child:
    """A running process. `role` is None for the coordinator."""

    def __init__(self, name: str, role: Role | None, folder: Path) -> None:
        self.name = name
        self.role = role
        self.log_path = folder / f"{name}.log"
        self.port_file = folder / f"{name}.port"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str]) -> None:
        """Start it in a session of its own, so that Ctrl-C at the terminal does not reach it."""
        self.port_file.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self.exit_code is None

    @property
    def address(self) -> str | None:
        """host:port it listens on, once it has told."""
        try:
            return self.port_file.read_text().strip() or None
        except FileNotFoundError:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; SIGKILL goes to its whole group."""
        if not self.is_running:
            return
        try:
            if number is signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass  # it ended between the look and the signal

    def log_tail(self, num_lines: int = TAIL_LINES) -> str:
        """The last lines of its log."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def died(self) -> ChildDiedError:
        """Its end as an error."""
        return ChildDiedError(self.name, self.exit_code or 0, self.log_tail(), self.log_path)


def describe_exit(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"
