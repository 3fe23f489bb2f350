"""Whether a grammar can be served, asked before a request is taken in.

A process of its own tries grammars out (`exspec.structured.vetting` says why); it is started with
the first one, kept, and replaced when a grammar was the end of it.
"""

from __future__ import annotations

import atexit
import json
import logging
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

from exspec.core.choosing import Grammar
from exspec.core.errors import QueueFullError, UnavailableError
from exspec.structured.compiling import check_available, refusal
from exspec.structured.vetting import MAX_SECONDS

logger = logging.getLogger(__name__)

VETTING = (sys.executable, "-m", "exspec.structured.vetting")
MAX_WAIT_SECONDS = 10.0
"""Time on the clock; processor time is bounded more closely, by the process itself."""
_EXIT_SECONDS = 1.0
_NUM_REMEMBERED = 256


class GrammarGate:
    """Owns the process that tries grammars out, and remembers what came of it.

    Any thread may ask; one grammar is tried at a time.
    """

    def __init__(
        self, command: Sequence[str] = VETTING, max_wait_seconds: float = MAX_WAIT_SECONDS
    ) -> None:
        self._command = tuple(command)
        self._max_wait_seconds = max_wait_seconds
        self._process_lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reasons_lock = threading.Lock()
        self._reasons = OrderedDict[Grammar, str]()
        """Why a grammar is refused, "" if it is not; the one asked for last is at the end."""

    def check(self, grammar: Grammar) -> None:
        """Return if the grammar can be served.

        Raises:
            InvalidRequestError: it cannot, or llguidance is not installed.
            QueueFullError: other grammars kept the process busy for too long.
            UnavailableError: the process cannot be started, or the machine is too slow now.
        """
        check_available("where the coordinator runs")
        reason = self._remembered(grammar)
        if reason is None:
            if not self._process_lock.acquire(timeout=self._max_wait_seconds):
                raise QueueFullError("too many grammars wait to be checked")
            try:
                reason = self._ask(grammar)
            finally:
                self._process_lock.release()
            self._remember(grammar, reason)
        if reason:
            raise refusal(reason)

    def _remembered(self, grammar: Grammar) -> str | None:
        with self._reasons_lock:
            if grammar in self._reasons:
                self._reasons.move_to_end(grammar)
            return self._reasons.get(grammar)

    def _remember(self, grammar: Grammar, reason: str) -> None:
        with self._reasons_lock:
            self._reasons[grammar] = reason
            if len(self._reasons) > _NUM_REMEMBERED:
                self._reasons.popitem(last=False)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        process.wait()

    def _ask(self, grammar: Grammar) -> str:
        process = self._started()
        message = json.dumps({"kind": grammar.kind.value, "text": grammar.text})
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # its exit code says more
            process.stdin.write(f"{message}\n".encode())
            process.stdin.flush()
        line = self._line(process)
        if line:
            return json.loads(line)["reason"]
        return self._epitaph(process)

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, ready to be asked."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._process = process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if not self._line(process):
            self.close()
            raise UnavailableError(
                f"grammars cannot be checked now: the process for it ended "
                f"with code {process.returncode}"
            )
        return process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Its next line; empty if it ended, or took too long."""
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        # It writes whole lines, one for each it is sent: once there is a byte there is a line.
        return process.stdout.readline() if poll.poll(self._max_wait_seconds * 1000) else b""

    def _epitaph(self, process: subprocess.Popen[bytes]) -> str:
        """Why there was no answer. The process is given up."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_SECONDS)
        code = process.returncode
        self.close()
        logger.warning("grammar.vetting_ended code=%s", code)
        if code is None:
            raise UnavailableError("the grammar could not be checked in time")
        if code == -signal.SIGXCPU:
            return f"structured takes more than {MAX_SECONDS} s of processor time to be made ready"
        return "structured is nested too deeply, or too large, to be made ready"


_gate = GrammarGate()
atexit.register(_gate.close)


def check_grammar(grammar: Grammar) -> None:
    """See `GrammarGate.check`; may take seconds, so it belongs on a thread."""
    _gate.check(grammar)
