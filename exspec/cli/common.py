"""What all commands share: options, exit codes, and how errors are told. No command lives here.

Exit codes: 0 it worked, 1 it did not, 2 what was asked for makes no sense.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, ParamSpec, TypeVar

import typer

from exspec.core.errors import CallerError, ExspecError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
DEFAULT_PORT = 50050
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"

LOG_WIDTH = 140

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def tells_errors(command: Callable[P, R]) -> Callable[P, R]:
    """A command that tells an error of ours in one line, and exits with its code."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ExspecError as error:
            fail(describe(error), EXIT_USAGE if isinstance(error, CallerError) else EXIT_FAILED)
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return told


@contextlib.contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the process as an exception does, so that what it started is stopped, too."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """Say why, and exit."""
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def describe(error: ExspecError) -> str:
    """Class and message, with the request id if there is one."""
    return f"{type(error).__name__}: {error}"


def open_console() -> Console:
    """A console for tables; a log gets lines wide enough for them."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    return console


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def plain(value: object) -> object:
    """Our values as what JSON knows."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
