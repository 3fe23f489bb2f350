"""What `AsyncClient.stream` and `.stream_batch` return: events, awaited. The twin of `streams`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from exspec.client.async_connection import AsyncConnection, AsyncEventCall
from exspec.client.courses import BatchCourse, GenerationCourse
from exspec.client.requests import BatchPlan, GeneratePlan
from exspec.client.results import BatchResult, GenerationResult
from exspec.client.stubs import AsyncStreamCall, AsyncStubs
from exspec.core.errors import ExspecError
from exspec.core.generation import BatchEvent, Delta, Event
from exspec.v1 import generation_pb2 as pb


class AsyncGenerationStream:
    """The events of one generation: Started, then Delta, then Completed.

    Iterate over it, or over `text_deltas()`; `final()` gives the whole result. Leaving the
    `async with` block before the end cancels the generation and frees the workers.
    """

    def __init__(self, connection: AsyncConnection, plan: GeneratePlan) -> None:
        course = GenerationCourse(plan)
        self._fold = course.fold
        attempts = connection.attempts(plan.call.request_id, plan.call.timeout)
        self._call = AsyncEventCall(connection, _generate, course, attempts)

    @property
    def request_id(self) -> str:
        """The id under which the coordinator knows the generation."""
        return self._fold.request_id

    @property
    def text(self) -> str:
        """The text so far."""
        return self._fold.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids so far."""
        return tuple(self._fold.token_ids)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._call.next()) is not None:
            yield event

    async def text_deltas(self) -> AsyncIterator[str]:
        """New text as it comes, never empty."""
        async for event in self:
            if isinstance(event, Delta) and event.text:
                yield event.text

    async def final(self) -> GenerationResult:
        """Read what is left, and return the whole."""
        async for _ in self:
            pass
        return self._fold.result()

    def cancel(self) -> None:
        """Stop the generation; whoever reads on gets RequestCancelledError."""
        self._call.cancel()

    def close(self) -> None:
        """Cancel, unless the end was read."""
        self._call.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncBatchStream:
    """The events of a batch as (index, event); a Failed event ends one sequence only.

    The index is the prompt's, or with `n` sequences of each prompt, prompt * n + sequence.

    Leaving the `async with` block before the end cancels what is left.
    """

    def __init__(self, connection: AsyncConnection, plan: BatchPlan) -> None:
        self.request_id = plan.call.request_id
        course = BatchCourse(plan)
        self._fold = course.fold
        attempts = connection.attempts(self.request_id, plan.call.timeout)
        self._call = AsyncEventCall(connection, _generate_batch, course, attempts)

    async def __aiter__(self) -> AsyncIterator[tuple[int, BatchEvent]]:
        while (item := await self._call.next()) is not None:
            yield item

    async def final(self) -> BatchResult:
        """Read what is left; of every sequence, in order, its result or its error.

        When the call dies after the first sequence has ended, those that have not end with its
        error, so that nothing that was generated is lost.
        """
        try:
            async for _ in self:
                pass
        except ExspecError as error:
            if not self._fold.has_ended_sequences:
                raise
            self._fold.fail_rest(error)
        return self._fold.result()

    def cancel(self) -> None:
        """Stop all generations; whoever reads on gets RequestCancelledError."""
        self._call.cancel()

    def close(self) -> None:
        """Cancel, unless the end was read."""
        self._call.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _generate(stubs: AsyncStubs) -> AsyncStreamCall[pb.GenerateRequest, pb.GenerateResponse]:
    return stubs.generate


def _generate_batch(
    stubs: AsyncStubs,
) -> AsyncStreamCall[pb.GenerateBatchRequest, pb.GenerateBatchResponse]:
    return stubs.generate_batch
