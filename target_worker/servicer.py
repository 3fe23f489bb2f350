"""TargetService over the verifier: one reply per request, in order; the loop only awaits."""

from __future__ import annotations

from collections.abc import AsyncIterator

from exspec.core.errors import UnavailableError
from exspec.core.ids import SequenceId
from exspec.core.models import TokenizerAssets
from exspec.runtime.clock import Clock
from exspec.runtime.worker_metrics import WorkerMeasures
from exspec.runtime.worker_thread import WorkerThread
from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.convert import (
    require_incarnation,
    verify_batch_from_message,
    verify_reply_to_message,
)
from exspec.wire.convert_model import tokenizer_to_message
from exspec.wire.repeats import SeenBatches
from exspec.wire.server import Context
from target_worker.verifier import Verifier


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """Hands batches to the worker thread."""

    def __init__(self, thread: WorkerThread, clock: Clock, incarnation: str) -> None:
        self._thread = thread
        self._clock = clock
        self._incarnation = incarnation
        self.measures = WorkerMeasures()
        """What was served so far."""
        self._loaded: tuple[Verifier, TokenizerAssets] | None = None

    def open(self, verifier: Verifier, tokenizer: TokenizerAssets) -> None:
        """The model is loaded: calls are served from now on, UNAVAILABLE before."""
        self._loaded = (verifier, tokenizer)

    @property
    def num_sequences(self) -> int:
        """Sequences held now; 0 while the model loads."""
        return self._loaded[0].num_sequences if self._loaded else 0

    async def Verify(
        self, request_iterator: AsyncIterator[target_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[target_pb2.VerifyResponse]:
        """One long-lived stream per coordinator; what came over it is forgotten when it ends."""
        verifier, _tokenizer = self._require_loaded()
        held: set[SequenceId] = set()
        seen = SeenBatches()
        try:
            async for request in request_iterator:
                require_incarnation(request.incarnation, self._incarnation)
                arrived = self._clock()
                batch = verify_batch_from_message(request)
                seen.note(batch.batch_id)
                fed = {entry.key.sequence_id for entry in batch.entries}
                held |= fed
                reply = await self._thread.run(verifier.verify, batch, arrived)
                self.measures.note_pass(reply.timings)
                # Not before: a batch that waits for the thread is dropped with its stream.
                held.difference_update(set(batch.released) - fed)
                yield verify_reply_to_message(reply)
        finally:
            # A coordinator that comes back, or another one, starts with empty workers.
            self._thread.post(verifier.forget, held)

    async def GetTokenizer(
        self, request: target_pb2.GetTokenizerRequest, context: Context
    ) -> target_pb2.GetTokenizerResponse:
        """The tokenizer as data."""
        _verifier, tokenizer = self._require_loaded()
        return tokenizer_to_message(tokenizer)

    def _require_loaded(self) -> tuple[Verifier, TokenizerAssets]:
        if self._loaded is None:
            raise UnavailableError("the model is still loading")
        return self._loaded
