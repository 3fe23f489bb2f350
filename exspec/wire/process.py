"""The edges of every serving process: notice that it should stop, say where it listens."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

from exspec.runtime.files import write_whole


@dataclass(frozen=True, slots=True)
class StopSignals:
    """Set when the process is told to stop (SIGTERM, SIGINT), and when it is told so again."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    insisted: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self) -> None:
        """A signal came."""
        (self.insisted if self.asked.is_set() else self.asked).set()


def stop_signals() -> StopSignals:
    """The process's signals from now on."""
    signals = StopSignals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.note)
    return signals


def stop_event() -> asyncio.Event:
    """Set when the process is told to stop (SIGTERM, SIGINT)."""
    return stop_signals().asked


def write_port_file(path: str, address: str) -> None:
    """Let whoever started the process know the address; written whole or not at all."""
    if path:
        write_whole(Path(path), address.encode())
