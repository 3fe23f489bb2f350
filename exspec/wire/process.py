"""The edges of every serving process: notice that it should stop, say where it listens."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from exspec.runtime.files import write_whole


def stop_event() -> asyncio.Event:
    """Set when the process is told to stop (SIGTERM, SIGINT)."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def write_port_file(path: str, address: str) -> None:
    """Let whoever started the process know the address; written whole or not at all."""
    if path:
        write_whole(Path(path), address.encode())
