"""A fake coordinator, and both clients of it."""

from __future__ import annotations

import threading

import pytest

from exspec.client import attempts
from exspec.client.fake import FakeCoordinator
from tests.client.faces import FACES


@pytest.fixture
def fake():
    with FakeCoordinator() as coordinator:
        yield coordinator


@pytest.fixture(params=list(FACES))
def open_client(request):
    """Make a client of an address; all are closed at the end."""
    opened = []

    def open_client(address, **settings):
        opened.append(FACES[request.param](address, **settings))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def client(open_client, fake):
    return open_client(fake.address)


@pytest.fixture
def quick_retries(monkeypatch):
    """Back-off in hundredths of its seconds."""
    monkeypatch.setattr(attempts, "FIRST_BACKOFF_SECONDS", 0.005)
    monkeypatch.setattr(attempts, "MAX_BACKOFF_SECONDS", 0.08)


@pytest.fixture
def silent_listener():
    """An address that takes connections and never answers."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_threads_left():
    """Every test ends with the threads it began with, but for gRPC's own."""
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.name == "warm-up"]
    assert not left
