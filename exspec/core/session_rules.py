"""The rules of the sequences a worker holds: made ready once, kept as long as they are held.

Both workers use it. What "ready" is they know; this owner only knows whose it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from exspec.core.choosing import ChoiceRules
from exspec.core.ids import SequenceId
from exspec.core.rounds import DraftEntry, VerifyEntry

Choosing = TypeVar("Choosing")


@dataclass(frozen=True, slots=True)
class ReadyRules(Generic[Choosing]):
    """What a sequence's tokens are chosen by. `choosing` is what was made of the rules."""

    epoch: int
    rules: ChoiceRules
    choosing: Choosing


class SessionRules(Generic[Choosing]):
    """Owns the ready rules of one worker's sessions; a sequence without any is greedy."""

    def __init__(self, make: Callable[[ChoiceRules], Choosing]) -> None:
        """`make` gets rules ready; what it raises, `of` raises."""
        self._make = make
        self._kept: dict[SequenceId, ReadyRules[Choosing]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, entry: VerifyEntry | DraftEntry) -> ReadyRules[Choosing] | None:
        """What the entry's tokens are chosen by. Changes nothing: the entry may yet be refused.

        An entry from position 0 on says it, for itself and for those after it.
        """
        kept = self._kept.get(entry.key.sequence_id)
        if entry.start > 0:
            return kept
        if entry.rules is None:
            return None
        if kept is not None and (kept.epoch, kept.rules) == (entry.key.epoch, entry.rules):
            return kept
        return ReadyRules(entry.key.epoch, entry.rules, self._make(entry.rules))

    def keep(self, sequence_id: SequenceId, ready: ReadyRules[Choosing] | None) -> None:
        """An entry is served by these; so will be those after it."""
        if ready is None:
            self._kept.pop(sequence_id, None)
        else:
            self._kept[sequence_id] = ready

    def drop(self, sequence_id: SequenceId) -> None:
        """The sequence is not held any more; dropping is idempotent."""
        self._kept.pop(sequence_id, None)
