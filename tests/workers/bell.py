"""Waiting for a state in tests without sleeping: whoever changes something rings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Rung from any thread; waited for on the loop it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Something changed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._rung.set)

    async def until(self, predicate: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until the predicate holds; looked at after every ring."""
        async with asyncio.timeout(seconds):
            while True:
                self._rung.clear()
                if predicate():
                    return
                await self._rung.wait()
