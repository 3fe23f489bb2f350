"""`exspec health`: a grpc.health.v1 probe for containers and scripts. Fast; loads no model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from exspec.cli.common import EXIT_FAILED, tells_errors
from exspec.cli.connect import Connect, connects


@tells_errors
@connects
def health(
    connect: Connect,
    service: Annotated[
        str, typer.Option(help="Service to ask for; empty: whether the process is up.")
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 3.0,
) -> None:
    """Ask a service whether it is serving: exit code 0 if it says so, else 1."""
    from exspec.wire.health import probe

    is_serving = probe(connect.address, service, timeout_seconds=timeout, tls=connect.tls)
    sys.stdout.write("SERVING\n" if is_serving else "NOT_SERVING\n")
    if not is_serving:
        raise typer.Exit(EXIT_FAILED)
