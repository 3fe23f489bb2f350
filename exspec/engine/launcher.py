"""Starts the ranks of a worker and watches them: `python -m exspec.engine.launcher`.

Built on the process control of torch's elastic launcher. `torchrun` itself ends with an error and
a traceback when it is told to stop, and its rendezvous listens on every interface; here a stop in
good order is exit code 0, and the ranks of one machine find each other through a file and talk over
loopback. The model is not loaded here.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from exspec.runtime.launch import rank_variables
from exspec.runtime.logs import set_up_logging

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
STOP_SECONDS = 30
"""What the ranks get beyond their grace to end by themselves."""
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_LOOPBACK_NAMES = ("lo", "lo0")


def main(argv: Sequence[str]) -> int:
    """0 if all ranks ended well, 1 if one did not."""
    parser = ArgumentParser(prog=f"python -m {__spec__.name if __spec__ else 'launcher'}")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--grace-seconds", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args(argv)
    set_up_logging(arguments.log_level, arguments.log_format)
    # It would have the last word on every failure, and knows less about it than the ranks.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    return launch(arguments.command, arguments.ranks, arguments.grace_seconds + STOP_SECONDS)


def launch(command: Sequence[str], num_ranks: int, stop_seconds: int) -> int:
    """Run the command as ranks 0, 1, … until they end; a signal to stop is handed on to all.

    When one fails the others are ended. `stop_seconds` is what they get before they are killed.
    """
    with tempfile.TemporaryDirectory(prefix="exspec-ranks-") as folder:
        context: PContext | None = None
        try:
            context = _start(command, num_ranks, Path(folder))
            result = context.wait(period=POLL_SECONDS)
        except SignalException as stop:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # it has been heard
            if context is None:
                return 1
            context.close(stop.sigval, timeout=stop_seconds)
            result = context.wait(timeout=0)
    if result is None or not result.failures:
        return 0 if result else 1
    for failure in result.failures.values():
        _log_killed(failure)
    return 1


def _log_killed(failure: ProcessFailure) -> None:
    """Ranks say themselves why they end, but for those that a signal ends."""
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # which the others get
        name = signal.Signals(-failure.exitcode).name
        logger.error("rank.killed rank=%d signal=%s", failure.local_rank, name)


def _start(command: Sequence[str], num_ranks: int, folder: Path) -> PContext:
    ranks = range(num_ranks)
    loopback = _loopback_variables()
    store_file = str(folder / "store")
    return start_processes(
        name="rank",
        entrypoint=command[0],
        args={rank: tuple(command[1:]) for rank in ranks},
        envs={rank: loopback | rank_variables(rank, num_ranks, store_file) for rank in ranks},
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
    )


def _loopback_variables() -> dict[str, str]:
    """Makes the ranks listen on loopback only, unless somebody has said where to listen."""
    names = [name for _, name in socket.if_nameindex() if name in _LOOPBACK_NAMES]
    missing = [name for name in _INTERFACE_VARIABLES if os.getenv(name) is None]
    return dict.fromkeys(missing, names[0]) if names else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
