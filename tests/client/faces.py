"""Both clients behind one blocking face, so that one suite tests the two."""

from __future__ import annotations

import asyncio
import threading

from exspec import AsyncClient, Client


class AsyncFace:
    """An AsyncClient on an event loop of its own, called from outside it."""

    def __init__(self, address, **settings):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = AsyncClient(address, **settings)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def stream(self, *args, **options):
        return AsyncStreamFace(self, self._client.stream(*args, **options))

    def stream_batch(self, *args, **options):
        return AsyncStreamFace(self, self._client.stream_batch(*args, **options))

    def close(self):
        self.run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __getattr__(self, name):
        value = getattr(self._client, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *args, **options: self.run(value(*args, **options))


class AsyncStreamFace:
    """An asynchronous stream, iterated from outside its event loop."""

    def __init__(self, face, stream):
        self._face = face
        self._stream = stream

    def __iter__(self):
        return self._drain(self._stream)

    def text_deltas(self):
        return self._drain(self._stream.text_deltas())

    def final(self):
        return self._face.run(self._stream.final())

    def cancel(self):
        self._face._loop.call_soon_threadsafe(self._stream.cancel)

    def __enter__(self):
        self._face.run(self._stream.__aenter__())
        return self

    def __exit__(self, *exc_info):
        self._face.run(self._stream.__aexit__(*exc_info))

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def _drain(self, stream):
        events = aiter(stream)
        while True:
            try:
                yield self._face.run(anext(events))
            except StopAsyncIteration:
                return


FACES = {"blocking": Client, "asyncio": AsyncFace}
