"""The only place that reads a clock, so that tests can hand in another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds on a clock that never goes back; only differences mean anything."""


def monotonic() -> float:
    """Seconds since some fixed moment of this process's life."""
    return time.perf_counter()


def now() -> datetime:
    """The date and time of the world, in UTC; for what outlives the process."""
    return datetime.now(UTC)
