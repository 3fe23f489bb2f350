"""A TCP proxy between two processes, and the weather in it. Knows bytes only, and loses none.

What is held back arrives when the weather clears, as it would on a network that comes back; what
was on a connection that was reset or that vanished is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65536
DELAY_SECONDS = 0.02
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Weather(Enum):
    """What bytes meet on their way. Connections can be made in any of it."""

    CLEAR = "clear"
    DELAY = "delay"
    """Every piece is late."""
    DRIBBLE = "dribble"
    """Byte by byte."""
    PARTITION = "partition"
    """Nothing arrives at either end, and neither end is told."""
    DEAF = "deaf"
    """What the connecting side sends does not arrive; it still hears."""
    MUTE = "mute"
    """What the other side sends does not arrive; it still hears."""


class _Way(Enum):
    """From the connecting side, or to it."""

    THERE = "there"
    BACK = "back"


_BLOCKED = {
    Weather.PARTITION: frozenset(_Way),
    Weather.DEAF: frozenset({_Way.THERE}),
    Weather.MUTE: frozenset({_Way.BACK}),
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two connections that are one to their ends."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    pumps: asyncio.Task[None]


class TcpProxy:
    """Listens for connections and makes each one's twin. Owns them all."""

    def __init__(self, upstream: str | None = None) -> None:
        self.upstream = upstream
        """host:port of who is behind it; without one connections are closed at once."""
        self.address = ""
        self._weather = Weather.CLEAR
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._pairs = set[_Pair]()
        self._vanished: list[_Pair] = []

    async def start(self) -> str:
        """Listen on a free port; the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self.address

    def set_weather(self, weather: Weather) -> None:
        """From the next piece on."""
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """All connections break, and both ends are told so."""
        for pair in tuple(self._pairs):
            for writer in (pair.near, pair.far):
                _break(writer)

    def vanish(self) -> None:
        """All connections are forgotten: half open for ever, and neither end is told."""
        for pair in tuple(self._pairs):
            pair.pumps.cancel()
            self._pairs.discard(pair)
            self._vanished.append(pair)

    async def close(self) -> None:
        """Break everything, and listen no more."""
        assert self._server is not None
        self._server.close()
        self.reset()
        for pair in self._vanished:
            _break(pair.near)
            _break(pair.far)
        pumps = [pair.pumps for pair in (*self._pairs, *self._vanished)]
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        host, _, port = (self.upstream or ":").rpartition(":")
        try:
            far_reader, far = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):
            near.close()
            return
        _no_nagle(near)
        _no_nagle(far)
        pumps = asyncio.gather(
            self._pump(reader, far, _Way.THERE), self._pump(far_reader, near, _Way.BACK)
        )
        pair = _Pair(near, far, asyncio.ensure_future(_quietly(pumps)))
        self._pairs.add(pair)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(pair.pumps)
        if pair in self._pairs:
            self._pairs.discard(pair)
            near.close()
            far.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            for piece in self._pieces(chunk):
                await self._until_passable(way)
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(DELAY_SECONDS if self._weather is Weather.DELAY else 0)
        await self._until_passable(way)
        writer.close()

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        """The chunk as the weather cuts it, which may change on the way."""
        while chunk:
            size = 1 if self._weather is Weather.DRIBBLE else len(chunk)
            piece, chunk = chunk[:size], chunk[size:]
            yield piece

    async def _until_passable(self, way: _Way) -> None:
        while way in _BLOCKED.get(self._weather, ()):
            await self._changed.wait()


async def _quietly(pumps: Awaitable[object]) -> None:
    """A connection that breaks ends its pumps."""
    with contextlib.suppress(OSError):
        await pumps


def _break(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


def _no_nagle(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
