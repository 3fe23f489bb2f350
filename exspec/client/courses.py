"""A generation over as many calls as it takes: what to ask next, and what of an answer is news.

When a coordinator is lost, the same generation is asked for once more with what has arrived of it,
and its caller sees one undisturbed sequence of events. Pure; both clients share it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from exspec.client.folds import BatchFold, GenerationFold
from exspec.client.requests import BatchPlan, GeneratePlan
from exspec.core.errors import ProtocolError
from exspec.core.generation import BatchEvent, Event
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_generation import batch_event_from_message, event_from_message

Q_co = TypeVar("Q_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True)
E_co = TypeVar("E_co", covariant=True)


class Course(Protocol[Q_co, M_contra, E_co]):
    """What a streaming call is for."""

    @property
    def has_begun(self) -> bool:
        """Whether anything has arrived: from then on it can only go on where it is."""
        ...

    @property
    def can_resume(self) -> bool:
        """Whether the coordinator that began it said what resuming needs."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to arrive."""
        ...

    def request(self) -> Q_co:
        """What to ask for now."""
        ...

    def take(self, message: M_contra) -> E_co | None:
        """The event that arrived; None when its caller has seen it before."""
        ...


class GenerationCourse:
    """One generation. Owns what has arrived of it."""

    def __init__(self, plan: GeneratePlan) -> None:
        self._message = plan.message
        self.fold = GenerationFold(plan.call.request_id)
        self.has_begun = False

    @property
    def can_resume(self) -> bool:
        """Whether the coordinator that began it said what resuming needs."""
        return self.fold.can_resume

    @property
    def is_over(self) -> bool:
        """Whether its end has arrived."""
        return self.fold.completed is not None

    def request(self) -> pb.GenerateRequest:
        """The generation, or what is left of it."""
        if not self.has_begun:
            return self._message
        request = pb.GenerateRequest()
        request.CopyFrom(self._message)
        request.model = request.model or self.fold.model
        request.resume.CopyFrom(self.fold.resume())
        if self.fold.prompt_logprobs:
            request.sampling.ClearField("prompt_logprobs")
        return request

    def take(self, message: pb.GenerateResponse) -> Event | None:
        """The event, if it is news."""
        self.has_begun = True
        event = event_from_message(message)
        return event if self.fold.add(event) else None


class BatchCourse:
    """The generations of a batch. Owns what has arrived of them, and which are asked for now."""

    def __init__(self, plan: BatchPlan) -> None:
        self._message = plan.message
        self._n = plan.message.n or 1
        self.fold = BatchFold(plan.call.request_id, len(plan.message.prompts), self._n)
        self._asked = self.fold.unfinished
        self.has_begun = False

    @property
    def can_resume(self) -> bool:
        """Whether the coordinator that began them said what resuming needs."""
        return self.fold.can_resume

    @property
    def is_over(self) -> bool:
        """Whether all sequences have ended."""
        return self.has_begun and not self.fold.unfinished

    def request(self) -> pb.GenerateBatchRequest:
        """The batch, or the sequences that are left, each with what has arrived of it."""
        if not self.has_begun:
            return self._message
        self._asked = self.fold.unfinished
        request = pb.GenerateBatchRequest()
        request.CopyFrom(self._message)
        request.model = request.model or self.fold.model
        request.n = 1
        del request.prompts[:]
        request.prompts.extend(self._message.prompts[index // self._n] for index in self._asked)
        request.resumes.extend(self.fold.resume(index, self._seed) for index in self._asked)
        return request

    def take(self, message: pb.GenerateBatchResponse) -> tuple[int, BatchEvent] | None:
        """The event with its sequence's index, if it is news."""
        if message.index >= len(self._asked):
            raise ProtocolError(
                f"an event for sequence {message.index} of {len(self._asked)}",
                request_id=self._message.request_id,
            )
        self.has_begun = True
        index = self._asked[message.index]
        event = self.fold.add(index, batch_event_from_message(message))
        return None if event is None else (index, event)

    @property
    def _seed(self) -> int | None:
        sampling = self._message.sampling
        return sampling.seed if sampling.HasField("seed") else None
