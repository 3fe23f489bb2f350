"""Metrics of a process, from the event loop that owns the figures to the scrapes that show them.

The loop publishes a snapshot once a second, scrapes come from other threads and read the latest
one: nothing that changes is ever shared. Without `--metrics-port` nothing here runs and
Prometheus's library is not loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from exspec.core.metrics import Metric, MetricKind, Sample, Samples
from exspec.runtime.addresses import require_closed
from exspec.runtime.clock import Clock, monotonic
from exspec.runtime.periodic import repeat_every
from exspec.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 1.0

SNAPSHOT_AGE = Metric(
    "exspec_metrics_age_seconds",
    MetricKind.GAUGE,
    "How old the figures are; more than two seconds: the event loop is held up.",
)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    taken: float
    samples: Samples


class SnapshotBoard:
    """Owns the latest snapshot. Published by the event loop, read by any thread."""

    def __init__(self, metrics: tuple[Metric, ...], clock: Clock) -> None:
        self.metrics = (*metrics, SNAPSHOT_AGE)
        """Every metric that may be shown; those without samples are named all the same."""
        self._clock = clock
        self._latest = _Snapshot(clock(), ())

    def publish(self, samples: Samples) -> None:
        """Replace the snapshot, whole."""
        self._latest = _Snapshot(self._clock(), samples)

    def read(self) -> Samples:
        """The latest snapshot and its age."""
        latest = self._latest
        return (*latest.samples, Sample(SNAPSHOT_AGE, (), self._clock() - latest.taken))


@contextlib.asynccontextmanager
async def metrics_served(
    settings: ServiceSettings, metrics: tuple[Metric, ...], collect: Callable[[], Samples]
) -> AsyncIterator[str]:
    """Serve what `collect` returns, if there is a `--metrics-port`; the address, empty without.

    Raises:
        InvalidRequestError: the port would be open to everybody, or a TLS file is not usable.
        UnavailableError: the port is in use, or not ours to take.
    """
    if settings.metrics_port is None:
        yield ""
        return
    if not (settings.has_tls or settings.allow_insecure_bind):
        # Beyond loopback only whom our authority has signed may look, unless that is said.
        require_closed("metrics_host", settings.metrics_host)
    from exspec.runtime.metrics_http import MetricsServer, secured_by

    board = SnapshotBoard(metrics, monotonic)
    server = MetricsServer(board, secured_by(settings))
    address = server.listen(settings.metrics_host, settings.metrics_port)
    logger.info("metrics.listening address=%s", address)
    publishing = asyncio.create_task(
        repeat_every(PUBLISH_SECONDS, lambda: board.publish(collect()))
    )
    try:
        yield address
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await asyncio.to_thread(server.close)
