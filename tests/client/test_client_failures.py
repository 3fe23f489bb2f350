"""What both clients do when things fail: classes, ids, deadlines, retries, unreachable servers."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from dataclasses import replace

import pytest

import exspec
from exspec import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    TooManyRequestsError,
    UnavailableError,
    WorkerLostError,
)
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.core.errors import ExspecError

RETRIED = ("QueueFullError", "TooManyRequestsError", "UnavailableError")
LEAVES = [
    getattr(exspec, name)
    for name in exspec.__all__
    if name.endswith("Error") and name not in ("ExspecError", *RETRIED)
]


@pytest.mark.parametrize("error_class", LEAVES, ids=lambda value: value.__name__)
def test_every_error_class_arrives_as_itself(client, fake, error_class):
    is_invalid = issubclass(error_class, InvalidRequestError)
    error = error_class("it broke", **({"field": "stop"} if is_invalid else {}))
    fake.fail(error)
    with pytest.raises(ExspecError) as caught:
        client.generate("Hi", request_id="mine")
    assert type(caught.value) is error_class
    assert caught.value.message == "it broke"
    assert str(caught.value) == "it broke (request mine)"
    assert caught.value.request_id == "mine"
    if is_invalid:
        assert caught.value.field == "stop"


def test_queue_full_says_when_to_retry(open_client, fake):
    client = open_client(fake.address, max_retries=0)
    fake.fail(QueueFullError("full", retry_after_seconds=2.5))
    with pytest.raises(QueueFullError) as caught:
        client.generate("Hi")
    assert caught.value.retry_after_seconds == 2.5


@pytest.mark.parametrize(
    "error", [UnavailableError("no target"), QueueFullError("full"), TooManyRequestsError("yours")]
)
def test_capacity_errors_before_the_first_event_are_retried(client, fake, quick_retries, error):
    if isinstance(error, QueueFullError):
        error.retry_after_seconds = 0.01
    fake.fail(error)
    fake.fail(error)
    fake.reply("third time")
    assert client.generate("Hi").text == "third time"
    assert len({request.request_id for request in fake.requests}) == 1
    assert len(fake.requests) == 3


def test_no_more_than_max_retries(open_client, fake, quick_retries):
    client = open_client(fake.address, max_retries=1)
    for number in range(3):
        fake.fail(UnavailableError(f"no target {number}"))
    with pytest.raises(UnavailableError, match="no target 1"):
        client.generate("Hi")
    assert len(fake.requests) == 2


def test_the_delay_asked_for_is_honoured(client, fake, quick_retries):
    fake.fail(QueueFullError("full", retry_after_seconds=0.3))
    start = time.perf_counter()
    client.generate("Hi")
    assert 0.3 <= time.perf_counter() - start < 3


def test_a_retry_that_would_miss_the_deadline_is_not_waited_for(client, fake):
    fake.fail(QueueFullError("full", retry_after_seconds=60))
    start = time.perf_counter()
    with pytest.raises(QueueFullError):
        client.generate("Hi", timeout=5)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("error", [WorkerLostError("x"), InvalidRequestError("x", field="stop")])
def test_other_errors_are_not_retried(client, fake, error):
    fake.fail(error)
    with pytest.raises(type(error)):
        client.generate("Hi")
    assert len(fake.requests) == 1


def test_nothing_is_retried_after_the_first_event(client, fake, quick_retries):
    fake.fail(UnavailableError("lost all targets"), after_text="ab")
    stream = client.stream("Hi")
    with pytest.raises(UnavailableError, match="lost all targets"):
        stream.final()
    assert len(fake.requests) == 1
    assert stream.text == "ab"


def test_cancelling_ends_a_pause_between_tries(client, fake):
    fake.fail(QueueFullError("full", retry_after_seconds=20))
    stream = client.stream("Hi")
    threading.Timer(0.3, stream.cancel).start()
    start = time.perf_counter()
    with pytest.raises(RequestCancelledError):
        stream.final()
    assert time.perf_counter() - start < 5


def test_the_deadline_ends_a_generation(client, fake):
    fake.reply("x" * 500, delay_seconds=0.05)
    start = time.perf_counter()
    with pytest.raises(DeadlineExceededError, match=r"no result within 0.4 s") as caught:
        client.generate("Hi", timeout=0.4, request_id="late")
    assert time.perf_counter() - start < 3
    assert caught.value.request_id == "late"
    assert fake.wait_cancelled()


def test_the_clients_own_timeout_is_the_default(open_client, fake):
    client = open_client(fake.address, timeout=0.3)
    fake.script(FakeReply("x" * 500, delay_seconds=0.05), FakeReply("y" * 12, delay_seconds=0.05))
    with pytest.raises(DeadlineExceededError):
        client.generate("Hi")
    assert client.generate("Hi", timeout=10).text == "y" * 12


def test_a_refused_connection_names_the_address(open_client):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    client = open_client(address, max_retries=0)
    start = time.perf_counter()
    with pytest.raises(UnavailableError, match=address) as caught:
        client.generate("Hi", request_id="mine")
    assert caught.value.request_id == "mine"
    with pytest.raises(UnavailableError, match=address):
        client.cluster_status()
    assert time.perf_counter() - start < 3


def test_a_listener_that_never_answers_is_unreachable(open_client, silent_listener):
    client = open_client(silent_listener, max_retries=0, connect_timeout=0.5)
    start = time.perf_counter()
    with pytest.raises(UnavailableError, match=silent_listener):
        client.generate("Hi")
    assert time.perf_counter() - start < 3


def test_a_name_that_does_not_exist_is_unreachable(open_client):
    client = open_client("no-such-host.invalid:50050", max_retries=0, connect_timeout=2)
    with pytest.raises(UnavailableError, match="no-such-host"):
        client.list_models()


def test_plain_text_to_a_port_that_closes_is_told_of_tls(open_client):
    """As a port with TLS does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_hang_up, args=(listener,), daemon=True).start()
        client = open_client(f"127.0.0.1:{listener.getsockname()[1]}", max_retries=0)
        with pytest.raises(UnavailableError, match="so must the client"):
            client.generate("Hi")


def _hang_up(listener: socket.socket) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as open_ones:
        while True:
            connection, _ = listener.accept()
            open_ones.enter_context(connection).recv(1 << 16)
            connection.shutdown(socket.SHUT_WR)


def test_a_coordinator_that_comes_back_is_found_by_a_retry(open_client):
    with FakeCoordinator() as first:
        client = open_client(first.address)
        assert client.generate("Hi").text == "ok"
        port = int(first.address.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        second = FakeCoordinator(port=port, default_text="back")
        starting = threading.Timer(0.3, lambda: stack.enter_context(second))
        starting.start()
        assert client.generate("Hi").text == "back"
        starting.join()


def test_calls_after_close_are_refused(open_client, fake):
    client = open_client(fake.address)
    client.generate("Hi")
    closed = client._client if hasattr(client, "run") else client
    if hasattr(client, "run"):
        client.run(closed.close())
    else:
        closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.generate("Hi")
    with pytest.raises(RuntimeError, match="closed"):
        client.cluster_status()


def test_wait_until_ready(client, fake):
    assert client.wait_until_ready(timeout=60).is_ready
    fake.status = replace(fake.status, is_ready=False)
    with pytest.raises(UnavailableError, match="no target worker has joined"):
        client.wait_until_ready(timeout=0.3)


def test_wait_until_ready_waits_for_the_coordinator_too(open_client, silent_listener):
    client = open_client(silent_listener, connect_timeout=0.2)
    with pytest.raises(UnavailableError, match=r"not ready after 0.5 s"):
        client.wait_until_ready(timeout=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"connect_timeout": -1},
        {"max_retries": -1},
        {"resume_timeout": -1},
        {"timeout": math.nan},
        {"connect_timeout": math.nan},
        {"resume_timeout": math.nan},
    ],
)
def test_settings_that_make_no_sense(settings):
    for client_class in (exspec.Client, exspec.AsyncClient):
        with pytest.raises(ValueError, match="must be"):
            client_class("127.0.0.1:1", **settings)
