"""Resident memory of a cluster's processes after so many and so many more short requests.

Measures processes that are already running; starting them is the caller's part.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from exspec.bench.load import LoadPlan, ignore_progress, repeated, run_load
from exspec.core.errors import InvalidRequestError, WorkerLostError

MAX_GROWTH = 0.02
"""Share of its first size that a process may grow by and still count as steady."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`num_requests` are running counts, growing: a look is taken after each."""

    num_requests: tuple[int, ...]
    load: LoadPlan

    def __post_init__(self) -> None:
        counts = self.num_requests
        if len(counts) < 2 or counts[0] < 1 or any(a >= b for a, b in pairwise(counts)):
            raise InvalidRequestError(
                f"two or more growing counts are needed, got {list(counts)}", field="num_requests"
            )


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of one process at every look."""

    name: str
    resident_bytes: tuple[int, ...]

    @property
    def growth(self) -> float:
        """From the first look to the last, as a share of the first."""
        return self.resident_bytes[-1] / self.resident_bytes[0] - 1

    @property
    def is_steady(self) -> bool:
        """Whether it is what it was."""
        return self.growth <= MAX_GROWTH


def measure_memory(
    address: str,
    pids: Mapping[str, int],
    prompts: Sequence[tuple[int, ...]],
    plan: MemoryPlan,
    on_done: Callable[[], None] = ignore_progress,
) -> list[ProcessMemory]:
    """Send the requests, looking at every named process after each count.

    Raises:
        ExspecError: a request failed, or a process ended.
    """
    looks: list[dict[str, int]] = []
    num_sent = 0
    for count in plan.num_requests:
        wanted = repeated(prompts, count)[num_sent:]
        run_load(address, wanted, plan.load, on_done).raise_first_error()
        num_sent = count
        looks.append({name: resident_bytes(name, pid) for name, pid in pids.items()})
    return [ProcessMemory(name, tuple(look[name] for look in looks)) for name in pids]


def resident_bytes(name: str, pid: int) -> int:
    """Physical memory of a process now; `name` is for the error."""
    statm = Path(f"/proc/{pid}/statm")
    if statm.parent.parent.joinpath("self").exists():
        try:
            return int(statm.read_text().split()[1]) * resource.getpagesize()
        except OSError as error:
            raise WorkerLostError(f"{name} (process {pid}) has ended") from error
    return _resident_bytes_by_ps(name, pid)


def _resident_bytes_by_ps(name: str, pid: int) -> int:
    """Where there is no /proc (macOS)."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not answer:
        raise WorkerLostError(f"{name} (process {pid}) has ended")
    return int(answer) * 1024
