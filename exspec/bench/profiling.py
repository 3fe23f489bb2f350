"""Where a call's time goes, among the functions of one folder. Standard library only."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """A function's own seconds per call of the whole, and how often it runs in one.

    What it calls outside of the folder (torch, mostly) is its own time.
    """

    name: str
    seconds: float
    num_calls: float


class _Called(Protocol):
    @property
    def code(self) -> CodeType | str: ...
    @property
    def totaltime(self) -> float: ...


def steps_of(call: Callable[[], object], number: int, folder: str) -> tuple[Step, ...]:
    """Run a call so many times; functions of files below `folder`, the longest first."""
    profile = cProfile.Profile()
    with profile:
        for _ in range(number):
            call()
    found = [
        Step(
            f"{Path(entry.code.co_filename).stem}.{entry.code.co_qualname}",
            (entry.inlinetime + _outside(entry.calls or (), folder)) / number,
            entry.callcount / number,
        )
        for entry in profile.getstats()
        if isinstance(entry.code, CodeType) and _is_below(entry.code, folder)
    ]
    return tuple(sorted(found, key=lambda step: -step.seconds))


def _outside(calls: Iterable[_Called], folder: str) -> float:
    return sum(one.totaltime for one in calls if not _is_below(one.code, folder))


def _is_below(code: CodeType | str, folder: str) -> bool:
    return isinstance(code, CodeType) and folder in code.co_filename
