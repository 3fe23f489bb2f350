"""Files that are written whole or not at all, whoever reads them meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_FOR_ALL = 0o644
_FOR_OWNER = 0o600


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others may read."""
    _replace(path, content, _FOR_ALL)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    _replace(path, content, _FOR_OWNER)


def _replace(path: Path, content: bytes, mode: int) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
