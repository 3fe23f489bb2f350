"""Room on disk: asked for beforehand, told clearly when there is none. Nothing is written here."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exspec.core.errors import CapacityError, InvalidRequestError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_room(path: Path, num_bytes: int, what: str) -> None:
    """Whether `num_bytes` can be written below `path`, which need not exist yet.

    Raises:
        CapacityError: if not, with the path, the bytes needed and the bytes free.
    """
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < num_bytes:
        raise CapacityError(
            f"{what} needs {_size(num_bytes)} at {path}, and {_size(free)} are free"
        )


@contextmanager
def told_when_full(path: Path, num_bytes: int, what: str) -> Iterator[None]:
    """Turns the system's errors while `what` is written to `path` into ours.

    Raises:
        CapacityError: if the disk, or a quota, is full; with the path and the bytes needed.
        InvalidRequestError: if the path cannot be written to at all.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise InvalidRequestError(
                f"{what} cannot be written to {path}: {error.strerror or error}", field="out"
            ) from error
        raise CapacityError(
            f"no room on the disk of {path} for {what}: {_size(num_bytes)} are needed, "
            f"{_size(shutil.disk_usage(path).free)} are free"
        ) from error


def is_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, is the system's "no space left"."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if "No space left on device" in str(error):  # safetensors' own error class
        return True
    return error.__cause__ is not None and is_full(error.__cause__)


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes ({num_bytes / 1e6:.1f} MB)"
