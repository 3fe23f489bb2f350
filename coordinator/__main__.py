"""Entry point: `python -m coordinator`, or `exspec serve coordinator`. Wires the parts together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from coordinator.settings import CoordinatorSettings
from coordinator.traces import TraceFiles, Traces
from exspec.core.errors import ExspecError
from exspec.runtime.clock import monotonic
from exspec.runtime.logs import set_up_logging
from exspec.runtime.settings import load_settings
from exspec.wire.process import ignore_stop_signals

if TYPE_CHECKING:
    from coordinator.parts import Parts
    from coordinator.servers import Ports

logger = logging.getLogger("coordinator")


async def serve(settings: CoordinatorSettings, traces: Traces | None) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends what the first left running at once.

    Raises:
        ExspecError: the port was refused.
    """
    from coordinator.parts import build
    from coordinator.servers import bind_ports
    from exspec.core.peer_roles import PeerRole
    from exspec.runtime.metrics import metrics_served
    from exspec.wire.process import stop_signals, write_port_file
    from exspec.wire.tls import tls_files

    stop = stop_signals()
    ports = bind_ports(settings, monotonic)
    tls = tls_files(settings)
    parts = build(
        settings, monotonic, traces, None if tls is None else tls.as_peer_of(PeerRole.WORKER)
    )
    ports.add_services(parts)
    await ports.start()
    logger.info(
        "coordinator.listening address=%s policy=%s", ",".join(ports.addresses), settings.policy
    )
    tasks = [
        asyncio.create_task(parts.service.run()),
        asyncio.create_task(_keep_health(ports, parts)),
        asyncio.create_task(_log_progress(parts)),
    ]
    try:
        async with metrics_served(settings, parts.view.metrics, parts.view.samples):
            write_port_file(settings.port_file, "\n".join(ports.addresses))
            await stop.asked.wait()
    finally:
        await _stop_serving(ports, settings.grace_seconds, stop.insisted)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.registry.close()
    logger.info("coordinator.stopped")


async def _stop_serving(ports: Ports, grace_seconds: float, insisted: asyncio.Event) -> None:
    """Running calls get their grace, until the process is told to stop once more."""
    from exspec.wire.process import unless_stopped

    stopping = asyncio.create_task(ports.stop(grace_seconds))
    if not await unless_stopped(stopping, insisted):
        await ports.stop(0)
        await stopping


async def _log_progress(parts: Parts) -> None:
    """A line now and then while there is work."""
    from coordinator.progress import PROGRESS_SECONDS, ProgressLog
    from exspec.runtime.periodic import repeat_every

    progress = ProgressLog(lambda: parts.view.status().pools, monotonic)
    await repeat_every(PROGRESS_SECONDS, progress.write)


async def _keep_health(ports: Ports, parts: Parts) -> None:
    """Ready while a connected target, of whatever model, takes rows."""
    while True:
        parts.readiness_changed.clear()
        await ports.set_ready(is_ready=parts.pools.has_target)
        await parts.readiness_changed.wait()


def main(argv: list[str]) -> int:
    """Run until told to stop; 1 if the coordinator could not serve."""
    settings = load_settings(CoordinatorSettings, argv)
    set_up_logging(settings.log_level, settings.log_format)
    with contextlib.ExitStack() as stack:
        try:
            path = settings.record_trace
            asyncio.run(serve(settings, TraceFiles(path, stack) if path else None))
        except (ExspecError, OSError) as error:
            logger.error("coordinator.failed reason=%s", error)  # noqa: TRY400
            return 1
    ignore_stop_signals()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
