"""What a worker may hold of what it was sent. Bookkeeping of names; nothing is sent here."""

from __future__ import annotations

from collections.abc import Iterable

from exspec.core.ids import BatchId, SequenceId

FIRST_RELEASE_ID = 1 << 62
"""Ids from here on are a link's own batches, far above any of a scheduler's."""


class Holdings:
    """What a worker may hold, whatever became of the messages: sent, and not known released.

    A release counts once it is answered, and only for what was not sent again after it. Work that
    is answered later than a release that was sent after it may have come after it as well: then it
    is released again.
    """

    def __init__(self) -> None:
        self._num_notes = 0
        self._sent: dict[SequenceId, int] = {}
        self._unanswered: dict[BatchId, frozenset[SequenceId]] = {}
        self._overtaken = set[SequenceId]()
        """Released while work for them was not answered."""
        self._releases: dict[BatchId, tuple[int, tuple[SequenceId, ...]]] = {}

    @property
    def names(self) -> tuple[SequenceId, ...]:
        """What the worker may hold."""
        return tuple(self._sent)

    def note_sent(self, batch_id: BatchId, sequence_ids: Iterable[SequenceId]) -> None:
        """Work for these goes out."""
        self._num_notes += 1
        names = frozenset(sequence_ids)
        self._sent.update(dict.fromkeys(names, self._num_notes))
        self._unanswered[batch_id] = names
        self._overtaken -= names

    def note_answered(self, batch_id: BatchId) -> tuple[SequenceId, ...]:
        """Work was answered. Returns what has to be released again."""
        names = self._unanswered.pop(batch_id, frozenset[SequenceId]())
        again = {name for name in names & self._overtaken if not self._is_under_way(name)}
        self._overtaken -= again
        return tuple(sorted(again))

    def begin_release(self, sequence_ids: tuple[SequenceId, ...]) -> BatchId:
        """A release of these goes out, as the batch of the returned id."""
        batch_id = self.new_batch_id()
        self._releases[batch_id] = (self._num_notes, sequence_ids)
        return batch_id

    def new_batch_id(self) -> BatchId:
        """For a batch that is not a scheduler's."""
        self._num_notes += 1
        return BatchId(FIRST_RELEASE_ID + self._num_notes)

    def forget_unanswered(self) -> None:
        """A connection ended: what was not answered on it will not be."""
        self._releases.clear()
        self._unanswered.clear()
        self._overtaken.clear()

    def note_released(self, batch_id: BatchId) -> None:
        """The release was answered."""
        when, sequence_ids = self._releases.pop(batch_id)
        for sequence_id in sequence_ids:
            if self._sent.get(sequence_id, when) >= when:
                continue
            if self._is_under_way(sequence_id):
                self._overtaken.add(sequence_id)
            else:
                del self._sent[sequence_id]

    def _is_under_way(self, sequence_id: SequenceId) -> bool:
        return any(sequence_id in names for names in self._unanswered.values())
