"""Looking for stop strings in text that arrives in pieces.

A stop string may lie across pieces (and blocks), so text that could be the beginning of one is held
back until it is clear. The piece that completes a stop string ends the text; among those it
completes the earliest start wins, at equal starts the longest. Pieces are tokens here, so the
result depends on the tokens alone, not on how they were batched.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Owns the text held back. Feed it pieces in order; after a match it takes no more."""

    def __init__(self, stop: Sequence[str], *, is_included: bool = False) -> None:
        """`is_included`: the text ends after the stop string that is met, not before it."""
        self._stop = tuple(stop)
        self._longest = max((len(stop) for stop in self._stop), default=0)
        self._is_included = is_included
        self._held = ""
        self.matched: str | None = None
        """The stop string that was met."""

    def push(self, piece: str) -> str:
        """Take a piece of text; returns what may be shown now.

        After a match (see `matched`) that is the text up to its end.
        """
        text = self._held + piece
        found = self._find(text)
        if found is None:
            return self._show(text)
        start, self.matched = found
        self._held = ""
        return text[: start + len(self.matched)] if self._is_included else text[:start]

    def pass_by(self, piece: str) -> str:
        """Take a piece that completes no stop string, whatever it says; returns what may be shown.

        It may be the beginning of one that a later piece completes.
        """
        return self._show(self._held + piece)

    def flush(self) -> str:
        """The text still held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _show(self, text: str) -> str:
        num_held = self._num_open(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def _find(self, text: str) -> tuple[int, str] | None:
        """What this piece completes: matches that end in text held before were passed by."""
        before = len(self._held)
        matches = [
            (text.find(stop, max(0, before - len(stop) + 1)), -len(stop), stop)
            for stop in self._stop
        ]
        matches = [match for match in matches if match[0] >= 0]
        if not matches:
            return None
        start, _, stop = min(matches)
        return start, stop

    def _num_open(self, text: str) -> int:
        """How many last characters could be the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - size :]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stop):
                return size
        return 0
