"""What a row must be before it may touch a model: bounds of slots, tokens and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exspec.core.errors import ContextLengthError, InvalidRequestError, ProtocolError
from exspec.engine.rows import RowInput


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What a runner can hold: slots, tokens of a slot, ids it can be fed, ids it can choose."""

    num_slots: int
    capacity: int
    num_embeddings: int
    vocab_size: int

    def check(self, rows: Sequence[RowInput], filled: Sequence[int]) -> None:
        """Refuse a batch; `filled` is how many tokens each slot holds.

        Raises:
            InvalidRequestError: for a row without tokens, a token outside the vocabulary, a slot
                that does not exist, more choices or scored tokens than tokens, or a history that is
                not all of it.
            ContextLengthError: if a row would outgrow its slot.
            ProtocolError: for a slot named twice, or a start beyond what the slot holds.
        """
        slots = [row.slot for row in rows]
        if len(set(slots)) != len(slots):
            raise ProtocolError(f"a slot is named twice in one pass: {sorted(slots)}")
        for row in rows:
            self._check_row(row, filled)
            _check_choosing(row, self.vocab_size)

    def _check_row(self, row: RowInput, filled: Sequence[int]) -> None:
        """Refuse a row that names what does not exist or does not fit."""
        if not 0 <= row.slot < self.num_slots:
            raise InvalidRequestError(f"there is no slot {row.slot}", field="slot")
        if not row.tokens:
            raise InvalidRequestError(f"slot {row.slot}: a row needs a token", field="tokens")
        if not 0 <= row.num_choices <= len(row.tokens):
            raise InvalidRequestError(
                f"slot {row.slot}: {row.num_choices} choices wanted after {len(row.tokens)} tokens",
                field="num_choices",
            )
        if not 0 <= row.start <= filled[row.slot]:
            raise ProtocolError(
                f"slot {row.slot} holds {filled[row.slot]} tokens, it cannot stand at {row.start}"
            )
        if row.start + len(row.tokens) > self.capacity:
            raise ContextLengthError(
                f"slot {row.slot}: {row.start} + {len(row.tokens)} tokens exceed the slot's "
                f"capacity of {self.capacity}",
                field="tokens",
            )
        if min(row.tokens) < 0 or max(row.tokens) >= self.num_embeddings:
            raise InvalidRequestError(
                f"slot {row.slot}: a token id is outside [0, {self.num_embeddings})",
                field="tokens",
            )


def _check_choosing(row: RowInput, vocab_size: int) -> None:
    """Refuse a row whose rules cannot be followed."""
    if len(row.scored) > len(row.tokens):
        raise InvalidRequestError(
            f"slot {row.slot}: {len(row.scored)} tokens to score after {len(row.tokens)}",
            field="scored",
        )
    if row.scored and (min(row.scored) < 0 or max(row.scored) >= vocab_size):
        raise InvalidRequestError(
            f"slot {row.slot}: a token to score is outside [0, {vocab_size})", field="scored"
        )
    if row.choosing is None or not row.num_choices:
        return
    if row.choosing.rules.needs_history and len(row.history) != row.start:
        raise InvalidRequestError(
            f"slot {row.slot}: its rules need the {row.start} tokens before, not "
            f"{len(row.history)}",
            field="history",
        )
    if row.choosing.vocab_size != vocab_size:
        raise InvalidRequestError(
            f"slot {row.slot}: its rules were opened for another vocabulary", field="choosing"
        )
