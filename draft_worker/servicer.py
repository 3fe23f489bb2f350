"""DraftService over the drafter: one reply per request, in order; the loop only awaits.

While no batch waits on any stream the drafter drafts ahead, if it does that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from draft_worker.drafter import Drafter
from draft_worker.idle import IdleTime, Inbox
from exspec.core.errors import UnavailableError
from exspec.core.ids import SequenceId
from exspec.runtime.clock import Clock
from exspec.runtime.worker_metrics import WorkerMeasures
from exspec.runtime.worker_thread import WorkerThread
from exspec.v1 import draft_pb2, draft_pb2_grpc
from exspec.wire.convert import (
    draft_batch_from_message,
    draft_reply_to_message,
    require_incarnation,
)
from exspec.wire.repeats import SeenBatches
from exspec.wire.server import Context


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """Hands batches to the worker thread."""

    def __init__(self, thread: WorkerThread, clock: Clock, incarnation: str) -> None:
        self._thread = thread
        self._clock = clock
        self._incarnation = incarnation
        self.measures = WorkerMeasures()
        """What was served so far."""
        self._drafter: Drafter | None = None
        self._idle_time = IdleTime(thread)

    def open(self, drafter: Drafter) -> None:
        """The model is loaded: calls are served from now on, UNAVAILABLE before."""
        self._drafter = drafter

    @property
    def num_sequences(self) -> int:
        """Sequences held now; 0 while the model loads."""
        return self._drafter.num_sequences if self._drafter else 0

    async def Draft(
        self, request_iterator: AsyncIterator[draft_pb2.DraftRequest], context: Context
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        """One long-lived stream per coordinator; what came over it is forgotten when it ends."""
        drafter = self._drafter
        if drafter is None:
            raise UnavailableError("the model is still loading")
        held: set[SequenceId] = set()
        seen = SeenBatches()
        try:
            with self._idle_time.watching(Inbox(request_iterator, self._clock)) as inbox:
                async for request, arrived in inbox:
                    require_incarnation(request.incarnation, self._incarnation)
                    batch = draft_batch_from_message(request)
                    seen.note(batch.batch_id)
                    fed = {entry.key.sequence_id for entry in batch.entries}
                    held |= fed
                    reply = await self._thread.run(drafter.draft, batch, arrived)
                    self.measures.note_pass(reply.timings)
                    # Not before: a batch that waits for the thread is dropped with its stream.
                    held.difference_update(set(batch.released) - fed)
                    yield draft_reply_to_message(reply)
                    if drafter.ahead.num_ahead:
                        self._idle_time.spend(drafter.draft_ahead)
        finally:
            # A coordinator that comes back, or another one, starts with empty workers.
            self._thread.post(drafter.forget, held)
