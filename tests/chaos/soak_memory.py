"""Whether processes keep their memory to themselves: samples in, a slope and a verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import psutil

from exspec.runtime.clock import Clock

WARM_UP_SHARE = 0.4
"""Of a process's life is not judged: caches fill, allocators learn."""
MIN_SAMPLES = 10
ALLOWED_MIB = 16.0
"""What a process may grow by after that, however long it runs."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Growth:
    """How a process's resident memory went after its warm-up."""

    name: str
    pid: int
    minutes: float
    mib: float
    """At the end."""
    grown_mib: float
    """From the start of what is judged to its end, in medians of a fifth each."""
    slope_mib_per_minute: float

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than is allowed."""
        return self.grown_mib <= ALLOWED_MIB


@dataclass(slots=True)
class _Life:
    name: str
    samples: list[tuple[float, float]] = field(default_factory=list)


class MemoryWatch:
    """Samples of every process that was ever watched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lives: dict[int, _Life] = {}

    def sample(self, pids: Mapping[str, int]) -> None:
        """Look at these processes now; one that ended is left out."""
        for name, pid in pids.items():
            try:
                resident = psutil.Process(pid).memory_info().rss / MIB
            except psutil.NoSuchProcess:
                continue
            self._lives.setdefault(pid, _Life(name)).samples.append((self._clock(), resident))

    def growths(self, pids: Mapping[str, int]) -> list[Growth]:
        """Of the processes that are alive and were watched for long enough."""
        alive = set(pids.values())
        return [
            growth_of(life.name, pid, life.samples)
            for pid, life in self._lives.items()
            if pid in alive and len(life.samples) >= MIN_SAMPLES
        ]


def growth_of(name: str, pid: int, samples: Sequence[tuple[float, float]]) -> Growth:
    """Judge samples of (seconds, MiB) in their order; at least ten."""
    judged = samples[int(len(samples) * WARM_UP_SHARE) :]
    fifth = max(1, len(judged) // 5)
    first = median(mib for _, mib in judged[:fifth])
    last = median(mib for _, mib in judged[-fifth:])
    minutes = (judged[-1][0] - judged[0][0]) / 60
    return Growth(name, pid, minutes, last, last - first, _slope(judged) * 60)


def _slope(samples: Sequence[tuple[float, float]]) -> float:
    """Least squares, MiB per second."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
