"""The one thread a worker computes on, so that the event loop only awaits.

Health checks are answered while a long pass runs, and torch never sees two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerThread:
    """Runs functions one at a time, in the order they were handed in."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `function(*args, **kwargs)` on the thread. A cancelled wait lets it finish."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run it in its turn; nobody waits. Dropped, as the rest, once the thread is closed."""
        with contextlib.suppress(RuntimeError):
            self._executor.submit(function, *args, **kwargs)

    def close(self) -> None:
        """Wait for the running function; drop those that have not started."""
        self._executor.shutdown(wait=True, cancel_futures=True)
