"""A worker that is several processes (ranks): how it starts itself, and what each of them is told.

The names in the environment are torch's own, so `torchrun` may start the ranks as well. No torch
here: `--help` and a wrong setting are answered before it is loaded.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pydantic_settings import BaseSettings, SettingsConfigDict

from exspec.core.errors import InvalidRequestError
from exspec.runtime.settings import EXIT_USAGE, ModelWorkerSettings

LAUNCHER = "exspec.engine.launcher"
PARENT_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank of how many this process is.

    `store_file` is where the ranks find each other; empty: at the address in torch's variables.
    `launcher` is the process that watches them.
    """

    rank: int
    local_rank: int
    num_ranks: int
    store_file: str
    launcher: int


class _RankEnvironment(BaseSettings):
    """What a launcher tells a rank."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    torchelastic_run_id: str = ""
    exspec_rank_store: str = ""
    exspec_rank_launcher: int | None = None


def rank_variables(rank: int, num_ranks: int, store_file: str) -> dict[str, str]:
    """The environment of one rank of this launcher, read again by `place_of_this_process`."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "EXSPEC_RANK_STORE": store_file,
        "EXSPEC_RANK_LAUNCHER": str(os.getpid()),
    }


def place_of_this_process(num_ranks: int) -> RankPlace | None:
    """Where a launcher has put this process; None if none has.

    Raises:
        InvalidRequestError: it has started another number of ranks.
    """
    told = _RankEnvironment()
    is_launched = bool(told.exspec_rank_store or told.torchelastic_run_id)
    if num_ranks == 1 or not is_launched or told.rank is None:
        return None
    if told.world_size != num_ranks:
        raise InvalidRequestError(
            f"--tensor-parallel {num_ranks} was started as {told.world_size} processes",
            field="tensor_parallel",
        )
    local_rank = told.rank if told.local_rank is None else told.local_rank
    launcher = told.exspec_rank_launcher or os.getppid()
    return RankPlace(told.rank, local_rank, num_ranks, told.exspec_rank_store, launcher)


def rank_place(
    settings: ModelWorkerSettings, module: str, arguments: Sequence[str]
) -> RankPlace | None:
    """This process's place; None for a worker of one process. Does not return to be the launcher.

    Exits with 2 if a launcher has started another number of ranks.
    """
    try:
        place = place_of_this_process(settings.tensor_parallel)
    except InvalidRequestError as error:
        sys.stderr.write(f"{module}: {error}\n")
        raise SystemExit(EXIT_USAGE) from error
    if place is not None:
        _end_with(place.launcher)
    elif settings.tensor_parallel > 1:
        _become_launcher(settings, module, arguments)
    return place


def launcher_command(
    settings: ModelWorkerSettings, module: str, arguments: Sequence[str]
) -> list[str]:
    """How to start all ranks of a worker, each running `python -m MODULE ARGUMENTS`."""
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    flags = [f"--ranks={settings.tensor_parallel}"]
    flags += [f"--log-level={settings.log_level}", f"--log-format={settings.log_format}"]
    return [*python, "-m", LAUNCHER, *flags, "--", *python, "-m", module, *arguments]


def end_of_rank(place: RankPlace | None, exit_code: int) -> int:
    """The exit code of a process that has done its work; if it is a rank it ends here.

    Threads that torch.distributed started may hold tensors yet. They would let go of them while
    the interpreter is taken down, and that aborts the process.
    """
    if place is not None:
        end_at_once(exit_code)
    return exit_code


def end_at_once(exit_code: int) -> NoReturn:
    """End without the interpreter's teardown."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _become_launcher(
    settings: ModelWorkerSettings, module: str, arguments: Sequence[str]
) -> NoReturn:
    """Replace this process, so that there is none more to watch than needed."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = launcher_command(settings, module, arguments)
    os.execv(command[0], command)


def _end_with(launcher: int) -> None:
    """Ranks run in sessions of their own: nobody else ends them when their launcher is killed.

    It may have been before this process got here, so that another parent says as much.
    """

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()
