"""Where the pools' schedulers record their traces: one file per served model."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Protocol, TextIO

logger = logging.getLogger(__name__)


class Traces(Protocol):
    """Gives every pool a stream to record in."""

    def open(self, model: str) -> TextIO | None:
        """For the pool of this served name; None: it goes unrecorded."""
        ...


class TraceFiles:
    """FILE for the first served model, FILE.2 for the second, and so on. Closed with the stack."""

    def __init__(self, path: str, stack: contextlib.ExitStack) -> None:
        """Raises OSError when FILE cannot be written."""
        self._path = path
        self._stack = stack
        self._first: TextIO | None = self._create(path)
        self._num_models = 0

    def open(self, model: str) -> TextIO | None:
        """The file of the next model; None, and a line in the log, when it cannot be written."""
        self._num_models += 1
        stream, self._first = self._first, None
        name = self._path if stream is not None else f"{self._path}.{self._num_models}"
        try:
            stream = stream or self._create(name)
        except OSError as error:
            logger.error("trace.failed model=%s file=%s reason=%s", model, name, error)  # noqa: TRY400
            return None
        logger.info("trace.recording model=%s file=%s", model, name)
        return stream

    def _create(self, name: str) -> TextIO:
        return self._stack.enter_context(Path(name).open("w", encoding="utf-8"))
