"""What a worker may hold of what it was sent. Bookkeeping of names; nothing is sent here."""

from __future__ import annotations

from collections.abc import Iterable

from exspec.core.ids import BatchId, SequenceId

FIRST_RELEASE_ID = 1 << 62
"""Ids from here on are a link's own batches, far above any of a scheduler's."""


class Holdings:
    """What a worker may hold, whatever became of the messages: sent, and not known released.

    A release counts once it is answered, and only for what was not sent again after it.
    """

    def __init__(self) -> None:
        self._num_notes = 0
        self._sent: dict[SequenceId, int] = {}
        self._releases: dict[BatchId, tuple[int, tuple[SequenceId, ...]]] = {}

    @property
    def names(self) -> tuple[SequenceId, ...]:
        """What the worker may hold."""
        return tuple(self._sent)

    def note_sent(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Work for these goes out."""
        self._num_notes += 1
        self._sent.update(dict.fromkeys(sequence_ids, self._num_notes))

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

    def note_released(self, batch_id: BatchId) -> None:
        """The release was answered."""
        when, sequence_ids = self._releases.pop(batch_id)
        for sequence_id in sequence_ids:
            if self._sent.get(sequence_id, when) < when:
                del self._sent[sequence_id]
