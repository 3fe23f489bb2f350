"""Logprobs of one prompt's tokens, as they come in with its chunks.

By position: chunks may come again, from another target or after a failed pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from exspec.core.choosing import TokenLogprobs


class PromptLogprobs:
    """Owns what has come of one prompt until it is taken. Nothing precedes its first token."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._places: list[TokenLogprobs | None] = [None] * (num_prompt_tokens - 1)

    def add(self, start: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Those of the tokens from position `start` (at least 1) on; what is no prompt is left."""
        room = logprobs[: max(0, len(self._places) + 1 - start)]
        self._places[start - 1 : start - 1 + len(room)] = room

    @property
    def first_missing(self) -> int | None:
        """The first position that has not come."""
        return next((i + 1 for i, one in enumerate(self._places) if one is None), None)

    def take(self) -> tuple[TokenLogprobs, ...]:
        """All of them."""
        return tuple(one for one in self._places if one is not None)
