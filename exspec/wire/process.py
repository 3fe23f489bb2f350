"""The edges of every serving process: notice that it should stop, say where it listens."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path


def stop_event() -> asyncio.Event:
    """Set when the process is told to stop (SIGTERM, SIGINT)."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def write_port_file(path: str, address: str) -> None:
    """Let whoever started the process know the address; written whole or not at all."""
    if not path:
        return
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    partial.write_text(address)
    partial.replace(target)
