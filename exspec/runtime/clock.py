"""The only place that reads a clock, so that tests can hand in another one."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a clock that never goes back; only differences mean anything."""


def monotonic() -> float:
    """Seconds since some fixed moment of this process's life."""
    return time.perf_counter()
