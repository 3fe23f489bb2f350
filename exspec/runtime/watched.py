"""A value that lives in files and is read again when they change, without a restart."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from exspec.core.errors import ExspecError
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Files are looked at once in this time at most."""

T = TypeVar("T")
Signature = tuple[tuple[int, int, int], ...]


class Watched(Generic[T]):
    """Owns the value and what the files looked like when it was read. Threads may share it.

    Nothing watches: whoever asks for the value has the files looked at. A change that cannot be
    read keeps the old value and is logged once.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], T], clock: Clock) -> None:
        """Read the value for the first time; what `read` raises is raised."""
        self._paths = tuple(paths)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._signature = _signature(self._paths)
        self._value = read()
        self._checked = clock()

    def current(self) -> T:
        """The value, as the files say now."""
        with self._lock:
            if self._clock() - self._checked >= CHECK_SECONDS:
                self._checked = self._clock()
                self._look()
            return self._value

    def _look(self) -> None:
        signature = _signature(self._paths)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._value = self._read()
        except (ExspecError, OSError) as error:
            logger.error("files.kept_old files=%s reason=%s", ",".join(self._paths), error)  # noqa: TRY400
        else:
            logger.info("files.read_again files=%s", ",".join(self._paths))


def _signature(paths: tuple[str, ...]) -> Signature:
    """What changes when a file does; a file that is not there is a state like any other."""
    return tuple(_look_of(path) for path in paths)


def _look_of(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_ino, status.st_size)
