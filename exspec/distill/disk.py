"""Room on disk: asked for beforehand, told clearly when there is none. Nothing is written here."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exspec.core.errors import CapacityError, InvalidRequestError
from exspec.runtime.files import write_whole

_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_room(path: Path, num_bytes: int, what: str) -> None:
    """Whether `num_bytes` can be written below `path`, which need not exist yet.

    Raises:
        CapacityError: if not, with the path, the bytes needed and the bytes free.
    """
    free = shutil.disk_usage(_existing(path)).free
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
    except Exception as error:
        if is_full(error):
            raise CapacityError(
                f"the disk of {path} is full: {what} needs {_size(num_bytes)}"
            ) from error
        if isinstance(error, OSError):
            raise InvalidRequestError(
                f"{what} cannot be written to {path}: {error.strerror or error}", field="out"
            ) from error
        raise


def write_or_tell(path: Path, content: bytes, what: str) -> None:
    """Write a file whole or not at all, in a folder that is made if need be.

    Raises:
        CapacityError, InvalidRequestError: as `told_when_full`.
    """
    with told_when_full(path, len(content), what):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def is_full(error: BaseException) -> bool:
    """Whether an error is the system's "no space left", in whatever class a library puts it."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(f"(os error {number})" in str(error) for number in _FULL)  # written in Rust


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes ({num_bytes / 1e6:.1f} MB)"
