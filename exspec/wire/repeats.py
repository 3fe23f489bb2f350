"""A batch that comes twice on one stream. gRPC does not do that, but what stands between may.

Served again it would bring back what was released since, and nobody would wait for its answer.
"""

from __future__ import annotations

from collections import deque

from exspec.core.errors import ProtocolError
from exspec.core.ids import BatchId

NUM_REMEMBERED = 4096
"""Far more than are under way at once; older ones are not looked for."""


class SeenBatches:
    """The batches of one stream so far."""

    def __init__(self, num_remembered: int = NUM_REMEMBERED) -> None:
        self._in_order = deque[BatchId](maxlen=num_remembered)
        self._seen = set[BatchId]()

    def note(self, batch_id: BatchId) -> None:
        """A batch came.

        Raises:
            ProtocolError: it has come before.
        """
        if batch_id in self._seen:
            raise ProtocolError(f"batch_id: {batch_id} came twice on one stream")
        if len(self._in_order) == self._in_order.maxlen:
            self._seen.remove(self._in_order[0])
        self._in_order.append(batch_id)
        self._seen.add(batch_id)
