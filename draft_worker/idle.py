"""When a worker is idle, and what it does then. Event loop only; knows no messages and no models.

Idle is: every open stream waits for its next request. To know that, requests are read one ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

from exspec.runtime.clock import Clock
from exspec.runtime.worker_thread import WorkerThread

Request = TypeVar("Request")

logger = logging.getLogger(__name__)


class Inbox(Generic[Request]):
    """One stream's requests, each with the time it arrived. To ask for the next ends the last."""

    def __init__(self, requests: AsyncIterator[Request], clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._is_serving = False
        self._upcoming = asyncio.create_task(self._read())

    @property
    def is_idle(self) -> bool:
        """Nothing is being served and nothing waits to be."""
        return not self._is_serving and not self._upcoming.done()

    def __aiter__(self) -> Inbox[Request]:
        return self

    async def __anext__(self) -> tuple[Request, float]:
        self._is_serving = False
        arrival = await self._upcoming
        if arrival is None:
            raise StopAsyncIteration
        self._is_serving = True
        self._upcoming = asyncio.create_task(self._read())
        return arrival

    def close(self) -> None:
        """Nobody asks for the next one any more."""
        if not self._upcoming.cancel() and not self._upcoming.cancelled():
            self._upcoming.exception()  # else it is logged as never looked at

    async def _read(self) -> tuple[Request, float] | None:
        request = await anext(self._requests, None)
        return None if request is None else (request, self._clock())


class IdleTime:
    """Owns the open inboxes and spends the time in which all are idle: one step after another.

    A step is short and cannot be interrupted: a request that arrives waits for one at most.
    """

    def __init__(self, thread: WorkerThread) -> None:
        self._thread = thread
        self._inboxes = set[Inbox[Any]]()
        self._spending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, inbox: Inbox[Request]) -> Iterator[Inbox[Request]]:
        """The stream is open until the end of the block."""
        self._inboxes.add(inbox)
        try:
            yield inbox
        finally:
            self._inboxes.discard(inbox)
            inbox.close()

    def spend(self, step: Callable[[], bool]) -> None:
        """From now on, while all are idle, call `step` on the thread until it returns False."""
        if self._spending is None or self._spending.done():
            self._spending = asyncio.create_task(self._spend(step))

    async def _spend(self, step: Callable[[], bool]) -> None:
        try:
            while self._is_idle() and await self._thread.run(step):
                pass
        except Exception:  # the edge of a task: a bug here may not end it in silence
            logger.exception("idle.failed")

    def _is_idle(self) -> bool:
        return bool(self._inboxes) and all(inbox.is_idle for inbox in self._inboxes)
