"""Metrics over HTTP: what is shown, to whom, and that a scrape never sees half of a change."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import urllib.error
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path

import pytest
from scraping import fetch, parse, scrape, series

from exspec.certs.authority import Validity
from exspec.certs.folder import make_certificates
from exspec.core.errors import InvalidRequestError, UnavailableError
from exspec.core.metrics import Histogram, Metric, MetricKind, Sample
from exspec.runtime import metrics
from exspec.runtime.clock import now
from exspec.runtime.metrics import SnapshotBoard, metrics_served
from exspec.runtime.metrics_http import MetricsServer
from exspec.runtime.settings import ServiceSettings

A = Metric("test_a_total", MetricKind.COUNTER, "a", ("kind",))
B = Metric("test_b", MetricKind.GAUGE, "b")
H = Metric("test_seconds", MetricKind.HISTOGRAM, "h")
ALL = (A, B, H)


def _settings(**values) -> ServiceSettings:
    return ServiceSettings(_cli_parse_args=[], **({"metrics_port": 0} | values))  # type: ignore[call-arg]


@pytest.fixture
def board():
    return SnapshotBoard(ALL, lambda: 0.0)


@pytest.fixture
def served(board):
    server = MetricsServer(board, None)
    yield server.listen("127.0.0.1", 0)
    server.close()


def test_the_latest_snapshot_is_shown(board, served):
    histogram = Histogram((0.5, 1.0))
    for value in (0.5, 0.75, 3.0):
        histogram.observe(value)
    board.publish((Sample(B, (), 1),))
    board.publish((Sample(A, ("x",), 3), Sample(A, ("y",), 4), Sample(H, (), histogram.value)))
    scraped = parse(fetch(served))
    assert series(scraped, "test_a_total", kind="x") == 3
    assert series(scraped, "test_a_total", kind="y") == 4
    assert ("test_b", frozenset()) not in scraped
    bounds = ("0.5", "1.0", "+Inf")
    assert [series(scraped, "test_seconds_bucket", le=bound) for bound in bounds] == [1, 2, 3]
    assert series(scraped, "test_seconds_count") == 3
    assert series(scraped, "test_seconds_sum") == 4.25
    assert ("process_resident_memory_bytes", frozenset()) in scraped


def test_metrics_without_a_figure_are_named_all_the_same(served):
    text = fetch(served)
    for metric in ALL:
        assert f"# TYPE {metric.name} {metric.kind.value}" in text


def test_a_scrape_never_sees_half_of_a_change(board, served):
    stopping = threading.Event()

    def publish() -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            board.publish((Sample(A, ("x",), number), Sample(B, (), number)))

    board.publish((Sample(A, ("x",), 0), Sample(B, (), 0)))
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        seen = [parse(fetch(served)) for _ in range(30)]
    finally:
        stopping.set()
        publisher.join()
    pairs = [(series(s, "test_a_total", kind="x"), series(s, "test_b")) for s in seen]
    assert all(a == b for a, b in pairs)
    assert pairs == sorted(pairs)
    assert pairs[-1] > pairs[0]


def test_the_age_of_the_figures_tells_a_loop_that_is_held_up():
    now = 5.0
    board = SnapshotBoard((), lambda: now)
    board.publish(())
    now = 12.0
    (age,) = board.read()
    assert (age.metric, age.value) == (metrics.SNAPSHOT_AGE, 7.0)


async def test_the_loop_publishes_again_and_again_whatever_happens_once(monkeypatch, caplog):
    monkeypatch.setattr(metrics, "PUBLISH_SECONDS", 0.01)
    num_looks = 0
    enough = asyncio.Event()

    def collect():
        nonlocal num_looks
        num_looks += 1
        if num_looks == 2:
            raise ValueError("planted")
        if num_looks == 4:  # the third is published by now
            enough.set()
        return (Sample(B, (), num_looks),)

    async with metrics_served(_settings(), ALL, collect) as address:
        await enough.wait()
        assert series(await scrape(address), "test_b") >= 3
    assert "planted" in caplog.text
    with pytest.raises(urllib.error.URLError):
        await scrape(address)


async def test_there_are_none_unless_a_port_is_given():
    settings = ServiceSettings(_cli_parse_args=[])  # type: ignore[call-arg]
    assert settings.metrics_port is None
    assert settings.metrics_host == "127.0.0.1"
    async with metrics_served(settings, ALL, lambda: pytest.fail("looked")) as address:
        assert address == ""


async def test_a_port_in_use_is_told_with_the_settings_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = _settings(metrics_port=taken.getsockname()[1])
        with pytest.raises(UnavailableError, match=r"--metrics-port.*in use"):
            async with metrics_served(settings, ALL, tuple):
                pass


async def test_ipv6_can_be_listened_on():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        async with metrics_served(_settings(metrics_host="::1"), ALL, tuple) as address:
            assert address.startswith("[::1]:")
            assert await scrape(address)
    except UnavailableError:
        pytest.skip("no IPv6 loopback here")


# Who may look


async def test_plain_text_beyond_loopback_must_be_wanted():
    with pytest.raises(InvalidRequestError, match="--allow-insecure-bind") as caught:
        async with metrics_served(_settings(metrics_host="0.0.0.0"), ALL, tuple):
            pass
    assert caught.value.field == "metrics_host"
    settings = _settings(metrics_host="0.0.0.0", allow_insecure_bind=True)
    async with metrics_served(settings, ALL, tuple) as address:
        assert await scrape(address.replace("0.0.0.0", "127.0.0.1"))


class _Certificates:
    """A folder as `exspec certs` makes it: an authority and the roles it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.renew()

    def renew(self) -> None:
        """A new authority, over the old files."""
        today = now()
        validity = Validity(today - timedelta(hours=1), today + timedelta(days=1))
        make_certificates(self.folder, (), validity, may_overwrite=True)

    def file(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def settings(self, role: str = "coordinator", **values) -> ServiceSettings:
        """Of a service with the role's certificate."""
        files = {
            "ssl_certfile": self.file(role),
            "ssl_keyfile": self.file(f"{role}-key"),
            "ssl_ca_certs": self.file("ca"),
        }
        return _settings(**(files | values))

    def client(self, shown: _Certificates | None = None) -> ssl.SSLContext:
        """Trusts this authority, and shows an operator's certificate if there is one."""
        context = ssl.create_default_context(cafile=self.file("ca"))
        if shown is not None:
            context.load_cert_chain(shown.file("operator"), shown.file("operator-key"))
        return context


@pytest.fixture
def certificates(tmp_path):
    return _Certificates(tmp_path / "ours")


async def test_with_tls_only_our_own_may_look(certificates, tmp_path, caplog):
    operator = certificates.client(certificates)
    settings = certificates.settings(metrics_host="0.0.0.0")
    async with metrics_served(settings, ALL, tuple) as address:
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert await scrape(address, operator)
        other = _Certificates(tmp_path / "others")
        for stranger in (certificates.client(), certificates.client(other)):
            with pytest.raises(OSError):  # noqa: PT011 - the library's message, or a reset
                await scrape(address, stranger)
        with pytest.raises((OSError, HTTPException)):
            await scrape(address)  # plain text to a TLS port
        assert await scrape(address, operator)
    assert "metrics.refused client=127.0.0.1" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("role", ["coordinator", "worker"])
async def test_a_scraper_can_check_the_role_whatever_the_address(certificates, role):
    """As Prometheus does: DNS gives it addresses, and `server_name` the name to expect."""
    operator = certificates.client(certificates)

    def handshake(address: str, name: str) -> str:
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            operator.wrap_socket(plain, server_hostname=name) as secured,
        ):
            secured.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return secured.recv(64).decode()

    async with metrics_served(certificates.settings(role), ALL, tuple) as address:
        name = f"{role}.exspec.internal"
        assert "200 OK" in await asyncio.to_thread(handshake, address, name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(handshake, address, "operator.exspec.internal")


async def test_a_client_that_says_nothing_keeps_nobody_out(certificates):
    operator = certificates.client(certificates)
    async with metrics_served(certificates.settings(), ALL, tuple) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))), socket.create_connection((host, port)):
            assert await scrape(address, operator)


async def test_renewed_certificates_need_no_restart(certificates):
    async with metrics_served(certificates.settings(), ALL, tuple) as address:
        assert await scrape(address, certificates.client(certificates))
        certificates.renew()
        assert await scrape(address, certificates.client(certificates))


async def test_a_certificate_that_cannot_be_read_is_told_with_the_settings_name(certificates):
    settings = certificates.settings(ssl_certfile="/nonexistent/cert.pem")
    with pytest.raises(InvalidRequestError, match="--ssl-certfile"):
        async with metrics_served(settings, ALL, tuple):
            pass


def test_scrapes_are_not_logged_unless_debugging(served, caplog):
    caplog.set_level(logging.INFO)
    fetch(served)
    assert "metrics" not in caplog.text
