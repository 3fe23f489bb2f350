"""What `Client.stream` and `Client.stream_batch` return: events one by one, blocking."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from exspec.client.connection import Connection, EventCall
from exspec.client.courses import BatchCourse, GenerationCourse
from exspec.client.requests import BatchPlan, GeneratePlan
from exspec.client.results import BatchResult, GenerationResult
from exspec.core.errors import ExspecError
from exspec.core.generation import BatchEvent, Delta, Event


class GenerationStream:
    """The events of one generation: Started, then Delta, then Completed.

    Iterate over it, or over `text_deltas()`; `final()` gives the whole result. Leaving the `with`
    block before the end cancels the generation and frees the workers.
    """

    def __init__(self, connection: Connection, plan: GeneratePlan) -> None:
        course = GenerationCourse(plan)
        self._fold = course.fold
        attempts = connection.attempts(plan.call.request_id, plan.call.timeout)
        self._call = EventCall(connection, connection.stubs.generate, course, attempts)

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

    def __iter__(self) -> Iterator[Event]:
        while (event := self._call.next()) is not None:
            yield event

    def text_deltas(self) -> Iterator[str]:
        """New text as it comes, never empty."""
        for event in self:
            if isinstance(event, Delta) and event.text:
                yield event.text

    def final(self) -> GenerationResult:
        """Read what is left, and return the whole."""
        for _ in self:
            pass
        return self._fold.result()

    def cancel(self) -> None:
        """Stop the generation, from any thread; whoever reads on gets RequestCancelledError."""
        self._call.cancel()

    def close(self) -> None:
        """Cancel, unless the end was read."""
        self._call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BatchStream:
    """The events of a batch as (index, event); a Failed event ends one sequence only.

    The index is the prompt's, or with `n` sequences of each prompt, prompt * n + sequence.

    Leaving the `with` block before the end cancels what is left.
    """

    def __init__(self, connection: Connection, plan: BatchPlan) -> None:
        self.request_id = plan.call.request_id
        course = BatchCourse(plan)
        self._fold = course.fold
        attempts = connection.attempts(self.request_id, plan.call.timeout)
        self._call = EventCall(connection, connection.stubs.generate_batch, course, attempts)

    def __iter__(self) -> Iterator[tuple[int, BatchEvent]]:
        while (item := self._call.next()) is not None:
            yield item

    def final(self) -> BatchResult:
        """Read what is left; of every sequence, in order, its result or its error.

        When the call dies after the first sequence has ended, those that have not end with its
        error, so that nothing that was generated is lost.
        """
        try:
            for _ in self:
                pass
        except ExspecError as error:
            if not self._fold.has_ended_sequences:
                raise
            self._fold.fail_rest(error)
        return self._fold.result()

    def cancel(self) -> None:
        """Stop all generations, from any thread; whoever reads on gets RequestCancelledError."""
        self._call.cancel()

    def close(self) -> None:
        """Cancel, unless the end was read."""
        self._call.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
