"""`exspec watch`: waits for a cluster, says how to use it, then shows how it does, until it fails.

The screen of Compose's `cluster` service. The texts and the bounds are in `watch_lines`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from exspec.cli.common import open_console, tells_errors
from exspec.cli.connect import Connect, connects
from exspec.cli.watch_lines import Look, Readiness, Welcome, live_line
from exspec.core.errors import DeadlineExceededError, UnavailableError
from exspec.runtime.clock import monotonic

if TYPE_CHECKING:
    from rich.status import Status

    from exspec.client import Client

STATUS_SECONDS = 5.0
POLL_SECONDS = 0.5
"""Between two looks at a cluster that is not ready."""

Interval = Annotated[float, typer.Option(min=0.1, help="Seconds between two lines.")]
StartSeconds = Annotated[
    float,
    typer.Option(
        min=0,
        envvar="EXSPEC_START_SECONDS",
        help="Seconds the cluster gets until it is ready at first.",
    ),
]
LostSeconds = Annotated[
    float,
    typer.Option(
        min=0,
        envvar="EXSPEC_LOST_SECONDS",
        help="Seconds it may be unreachable or not ready later on.",
    ),
]
PublicAddress = Annotated[
    str,
    typer.Option(
        envvar="EXSPEC_PUBLIC_ADDRESS",
        help="host:port that the example shows. Default: --address.",
    ),
]
ExampleCa = Annotated[
    str,
    typer.Option(
        envvar="EXSPEC_EXAMPLE_CA_CERTS", help="CA file that the example shows; empty: plain text."
    ),
]
ExampleIntro = Annotated[
    str,
    typer.Option(envvar="EXSPEC_EXAMPLE_INTRO", help="Lines to show before the example, as is."),
]


@tells_errors
@connects
def watch(
    connect: Connect,
    interval: Interval = 5.0,
    start_seconds: StartSeconds = 600.0,
    lost_seconds: LostSeconds = 30.0,
    public_address: PublicAddress = "",
    example_ca_certs: ExampleCa = "",
    example_intro: ExampleIntro = "",
) -> None:
    """Wait for a cluster, show how to use it and how it does. Exit code 1 once it fails."""
    welcome = Welcome(
        address=public_address or connect.address,
        ca_file=example_ca_certs,
        needs_key=bool(connect.api_key),
        intro=example_intro,
    )
    readiness = Readiness(start_seconds, lost_seconds, monotonic())
    stop = _stop_on_signals()
    with connect.client(max_retries=0) as client, _open_screen() as screen:
        _Watcher(client, screen, readiness, welcome).run(stop, interval)


class Screen(Protocol):
    """Where lines go: `say` for those that stay, `show` for the one that is replaced."""

    def say(self, line: str) -> None: ...
    def show(self, line: str) -> None: ...


class _Watcher:
    """Looks, tells, waits. Owns the last look."""

    def __init__(
        self, client: Client, screen: Screen, readiness: Readiness, welcome: Welcome
    ) -> None:
        self._client = client
        self._screen = screen
        self._readiness = readiness
        self._welcome: Welcome | None = welcome
        self._before: Look | None = None

    def run(self, stop: threading.Event, interval: float) -> None:
        """Until `stop` is set; UnavailableError when the cluster has failed."""
        pause = 0.0
        while not stop.wait(pause):
            pause = interval if self._look() else POLL_SECONDS

    def _look(self) -> bool:
        """Ask once and tell; whether it is ready."""
        from exspec.client.waiting import missing_of

        try:
            status = self._client.cluster_status(timeout=STATUS_SECONDS)
        except (UnavailableError, DeadlineExceededError) as error:
            return self._miss(error.message)
        if not status.is_ready:
            return self._miss(missing_of(status))
        now = Look(status, monotonic())
        self._tell_ready(now)
        self._screen.show(live_line(self._before, now))
        self._before = now
        return True

    def _miss(self, reason: str) -> bool:
        self._screen.show(f"waiting: {reason}")
        self._readiness.note_missing(reason, monotonic())
        return False

    def _tell_ready(self, now: Look) -> None:
        """The welcome once; later only that it is ready again."""
        seconds = self._readiness.note_ready(now.at_seconds)
        if seconds is None:
            return
        if self._welcome is None:
            self._screen.say(f"ready again after {seconds:.0f} s")
            return
        for line in self._welcome.lines(now.status, seconds):
            self._screen.say(line)
        self._welcome = None


class _Lines:
    """For logs: every line stays, and what was just said is not said again."""

    def __init__(self) -> None:
        self._shown = ""

    def say(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def show(self, line: str) -> None:
        if line != self._shown:
            self._shown = line
            self.say(line)


class _Terminal:
    """For people: one line that changes, below those that stay."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def say(self, line: str) -> None:
        self._status.console.print(line, markup=False)

    def show(self, line: str) -> None:
        from rich.markup import escape

        self._status.update(escape(line))


@contextlib.contextmanager
def _open_screen() -> Iterator[Screen]:
    console = open_console()
    if not console.is_terminal:
        yield _Lines()
        return
    with console.status("looking for the cluster") as status:
        yield _Terminal(status)


def _stop_on_signals() -> threading.Event:
    """Set by Ctrl-C and SIGTERM: being told to stop is not a failure of the cluster."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop
