"""The edges of every serving process: notice that it should stop, say where it listens."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

from exspec.runtime.files import write_whole

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, signals.note)
    return signals


def ignore_stop_signals() -> None:
    """For a process that is about to end well: who asks again does not make it end badly."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def unless_stopped(task: asyncio.Task[None], stopping: asyncio.Event) -> bool:
    """Wait for the task; False if the process was told to stop before it was done."""
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        return False
    waiting.cancel()
    task.result()
    return True


def write_port_file(path: str, address: str) -> None:
    """Let whoever started the process know the address; written whole or not at all."""
    if path:
        write_whole(Path(path), address.encode())
