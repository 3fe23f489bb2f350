"""The HTTP side of metrics: Prometheus's library renders a snapshot, threads of ours serve it.

The library's own `start_http_server` shakes hands on the thread that accepts connections, so one
client that says nothing would keep everybody out; here each connection's thread does it.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exspec.core.errors import InvalidRequestError, UnavailableError
from exspec.core.metrics import HistogramValue, Metric, MetricKind, Sample
from exspec.runtime.addresses import join_address
from exspec.runtime.metrics import SnapshotBoard
from exspec.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

CLIENT_SECONDS = 10.0
"""How long a client may say nothing."""


Secure = Callable[[], ssl.SSLContext]
"""Reads the TLS files again for every connection: renewed certificates need no restart."""


def secured_by(settings: ServiceSettings) -> Secure | None:
    """TLS as the service itself has it, clients' certificates required; None in plain text.

    Raises:
        InvalidRequestError: a file cannot be used.
    """
    if not settings.has_tls:
        return None
    secure = partial(
        _server_context, settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs
    )
    try:
        secure()
    except OSError as error:
        raise InvalidRequestError(
            f"--ssl-certfile, --ssl-keyfile, --ssl-ca-certs: not usable for metrics: {error}",
            field="ssl_certfile",
        ) from error
    return secure


def _server_context(certfile: str, keyfile: str, ca_certs: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_certs)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile, keyfile)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class MetricsServer:
    """Answers scrapes on threads of its own, from the board's latest snapshot."""

    def __init__(self, board: SnapshotBoard, secure: Secure | None) -> None:
        registry = CollectorRegistry()
        registry.register(_SnapshotCollector(board))
        ProcessCollector(registry=registry)
        self._app = make_wsgi_app(registry)
        self._secure = secure
        self._server: _Server | None = None

    def listen(self, host: str, port: int) -> str:
        """Serve from now on; the address with the port taken.

        Raises:
            UnavailableError: the port is in use, or not ours to take.
        """
        try:
            server = _Server(host, port, self._secure)
        except OSError as error:
            raise UnavailableError(
                f"cannot serve metrics on {join_address(host, port)} (--metrics-host, "
                f"--metrics-port): {error.strerror or error}"
            ) from error
        server.set_app(self._app)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        self._server = server
        return join_address(host, server.server_port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _SnapshotCollector(Collector):
    """Renders what is on the board."""

    def __init__(self, board: SnapshotBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Family]:
        families = {metric.name: _family(metric) for metric in self._board.metrics}
        for sample in self._board.read():
            _add(families[sample.metric.name], sample)
        yield from families.values()


def _family(metric: Metric) -> Family:
    match metric.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Family, sample: Sample) -> None:
    value = sample.value
    if isinstance(value, HistogramValue):
        assert isinstance(family, HistogramMetricFamily)
        bounds = (*map(floatToGoString, value.bounds), "+Inf")
        buckets = list(zip(bounds, value.cumulative_counts, strict=True))
        family.add_metric(sample.labels, buckets, sum_value=value.total)
    else:
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(sample.labels, value)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401, ARG002
        logger.debug("metrics.scraped client=%s", self.client_address[0])


class _Server(ThreadingWSGIServer):
    """A thread per connection; its TLS handshake, if any, is that thread's business."""

    allow_reuse_port = False  # else a second process shares the port and takes half the scrapes

    def __init__(self, host: str, port: int, secure: Secure | None) -> None:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        self.address_family, *_, address = found[0]
        self._secure = secure
        super().__init__((str(address[0]), port), _Handler)

    def server_bind(self) -> None:
        """As the library does, but without asking DNS for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """On the connection's thread."""
        if self._secure is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(CLIENT_SECONDS)
        with self._secure().wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002
        """A client without a good certificate, or one that left."""
        logger.warning("metrics.refused client=%s reason=%s", client_address[0], sys.exception())
