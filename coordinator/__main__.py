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

if TYPE_CHECKING:
    from coordinator.parts import Parts
    from exspec.wire.server import RpcServer

logger = logging.getLogger("coordinator")


async def serve(settings: CoordinatorSettings, traces: Traces | None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ExspecError: the port was refused.
    """
    from coordinator.parts import SERVICE_NAMES, build
    from exspec.wire.channel import MAX_RESUMED_REQUEST_BYTES
    from exspec.wire.process import stop_event, write_port_file
    from exspec.wire.server import RpcServer

    stopping = stop_event()
    server = RpcServer(SERVICE_NAMES, max_request_bytes=MAX_RESUMED_REQUEST_BYTES)
    bound = server.bind(settings.host, settings.port, allow_insecure=settings.allow_insecure_bind)
    parts = build(settings, monotonic, traces)
    parts.add_to(server.grpc_server)
    await server.start()
    logger.info("coordinator.listening address=%s policy=%s", bound, settings.policy)
    tasks = [
        asyncio.create_task(parts.service.run()),
        asyncio.create_task(_keep_health(server, parts)),
    ]
    try:
        write_port_file(settings.port_file, bound)
        await stopping.wait()
    finally:
        await server.stop(settings.grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.registry.close()
    logger.info("coordinator.stopped")


async def _keep_health(server: RpcServer, parts: Parts) -> None:
    """Ready while a connected target, of whatever model, takes rows."""
    while True:
        parts.readiness_changed.clear()
        await server.set_ready(is_ready=parts.pools.has_target)
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
