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

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.matched: str | None = None
        """The stop string that was met."""

    def push(self, piece: str) -> str:
        """Take a piece of text; returns what may be shown now.

        After a match (see `matched`) that is the text before the stop string.
        """
        text = self._held + piece
        found = self._find(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        num_held = self._num_open(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """The text still held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        matches = [(text.find(stop), -len(stop), stop) for stop in self._stop]
        matches = [match for match in matches if match[0] >= 0]
        if not matches:
            return None
        start, _, stop = min(matches)
        return start, stop

    def _num_open(self, text: str) -> int:
        """How many last characters could be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stop), default=0)
        for size in range(min(longest - 1, len(text)), 0, -1):
            tail = text[len(text) - size :]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0
