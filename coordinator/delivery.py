"""From what a sequence commits to what its client reads: at the client's pace, in bounded space.

A `Mailbox` holds what one client has not read of one sequence, `merge` is several sequences read
as one, `write` bounds how long a client may leave what it was handed unread. No requests here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, Protocol, TypeVar

from exspec.core.choosing import TokenLogprobs
from exspec.core.errors import SlowReaderError
from exspec.core.generation import Delta, Event, Failed

E = TypeVar("E")
M_contra = TypeVar("M_contra", contravariant=True)


class Mailbox:
    """Events of one sequence that were not read yet: at most one delta, and the end.

    Unread deltas become one, so that a client that does not read costs no more than its sequence.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._end: Event | Failed | None = None
        self._changed = asyncio.Event()

    def put(self, event: Event | Failed) -> None:
        """The sequence's next event; the one after which there is none is Completed or Failed."""
        if isinstance(event, Delta):
            self._texts.append(event.text)
            self._token_ids.extend(event.token_ids)
            self._logprobs.extend(event.logprobs)
            self._prompt_logprobs = self._prompt_logprobs or event.prompt_logprobs
        else:
            self._end = event
        self._changed.set()

    async def take(self) -> Event | Failed:
        """The next event, waited for. Not to be called after the last one."""
        while True:
            if self._token_ids:
                return self._merged()
            if self._end is not None:
                return self._end
            self._changed.clear()
            await self._changed.wait()

    def _merged(self) -> Delta:
        """All that was not read, as one."""
        delta = Delta(
            "".join(self._texts),
            tuple(self._token_ids),
            tuple(self._logprobs),
            self._prompt_logprobs,
        )
        self._texts.clear()
        self._token_ids.clear()
        self._logprobs.clear()
        self._prompt_logprobs = ()
        return delta


class _Lane(Generic[E]):
    """One of several streams that are read as one; at most one of its events waits."""

    def __init__(self, events: AsyncGenerator[E, None]) -> None:
        self._events = events
        self._taken = asyncio.Event()

    def go_on(self) -> None:
        """Its event was read."""
        self._taken.set()

    async def run(self, index: int, waiting: asyncio.Queue[tuple[int, E] | None]) -> None:
        """Put its events one by one, each when the last was read, and None after them."""
        try:
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    self._taken.clear()
                    waiting.put_nowait((index, event))
                    await self._taken.wait()
        finally:
            waiting.put_nowait(None)


async def merge(streams: Sequence[AsyncGenerator[E, None]]) -> AsyncGenerator[tuple[int, E], None]:
    """The events of several streams as they come, each with its stream's index.

    Streams run side by side and may not fail. At most one event of each waits here, what comes
    meanwhile waits where it comes from. Closing the iterator closes them all.
    """
    lanes = [_Lane(stream) for stream in streams]
    waiting: asyncio.Queue[tuple[int, E] | None] = asyncio.Queue()
    tasks = [asyncio.create_task(lane.run(index, waiting)) for index, lane in enumerate(lanes)]
    num_open = len(tasks)
    try:
        while num_open:
            item = await waiting.get()
            if item is None:
                num_open -= 1
            else:
                yield item
                lanes[item[0]].go_on()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Writable(Protocol[M_contra]):
    """What of a gRPC call is needed to answer it."""

    async def write(self, message: M_contra, /) -> None: ...


async def write(call: Writable[M_contra], message: M_contra, slow_reader_seconds: float) -> None:
    """Send one message; it may wait for room, which is there when the client reads.

    Raises:
        SlowReaderError: the client did not read for that long.
    """
    try:
        async with asyncio.timeout(slow_reader_seconds):
            await call.write(message)
    except TimeoutError as error:
        raise SlowReaderError(
            f"events were left unread for {slow_reader_seconds:g} s; that is as long as a client "
            "may (--slow-reader-seconds of the coordinator)"
        ) from error
