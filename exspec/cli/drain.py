"""`exspec drain`: let a worker go without losing anything."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from exspec.cli.common import tells_errors
from exspec.cli.connect import Connect, connects


@tells_errors
@connects
def drain(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as `exspec status` shows it.")],
    connect: Connect,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 600.0,
) -> None:
    """Give a worker no new rows, move those it has, and let its process end.

    It goes on draining when this command is stopped before. Rows of a model's last target wait for
    another one, as long as the coordinator lets requests wait.
    """
    with connect.client(max_retries=0) as client:
        num_moved = client.drain_worker(worker, timeout=timeout)
    sequences = "sequence" if num_moved == 1 else "sequences"
    sys.stdout.write(f"{worker} is drained: {num_moved} {sequences} moved\n")
