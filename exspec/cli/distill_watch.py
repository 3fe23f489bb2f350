"""What `exspec distill` shows while it works, and how signals end it. No options, no results."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_UNITS = {"text": "answer tokens", "training": "samples", "export": "models"}
_LINES_PER_STAGE = 20


@dataclass(slots=True)
class Ending:
    """Whether a signal asked for the end, and which: 0 for none."""

    signal_number: int = 0


@contextmanager
def ends_on_signals() -> Iterator[Ending]:
    """The first SIGINT or SIGTERM is kept for the next step to see; a second one ends at once."""
    ending = Ending()

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if ending.signal_number:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        ending.signal_number = number
        sys.stderr.write("\nending at the next step; a second signal ends at once\n")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ShownProgress:
    """A bar per stage on stderr; where that is no terminal, a line now and then."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._console = Console(stderr=True, highlight=False, emoji=False)
        self._is_live = self._console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._is_live,
        )
        self._bar: TaskID | None = None
        self._name, self._total, self._done, self._told = "", 0, 0, 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int, done: int) -> None:
        """A stage begins."""
        self._name, self._total, self._done = name, total, done
        self._bar = self._bars.add_task(name, total=total, completed=done)
        self._tell_line()

    def advance(self, number: int) -> None:
        """So many more are done."""
        self._done += number
        if self._bar is not None:
            self._bars.advance(self._bar, number)
        if (self._done - self._told) * _LINES_PER_STAGE >= self._total:
            self._tell_line()

    def note(self, line: str) -> None:
        """Something worth reading."""
        self._console.print(line, markup=False)

    def should_stop(self) -> bool:
        """Whether a signal came."""
        return self._ending.signal_number != 0

    def _tell_line(self) -> None:
        self._told = self._done
        if not self._is_live:
            unit = _UNITS.get(self._name, "")
            self.note(f"{self._name}: {self._done:,} of {self._total:,} {unit}".rstrip())
