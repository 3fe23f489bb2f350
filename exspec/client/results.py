"""What the clients return, and how events fold into it. Pure; both clients share all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from exspec.core.acceptance import FinishReason
from exspec.core.errors import ExspecError, ProtocolError
from exspec.core.generation import (
    BatchEvent,
    Completed,
    Delta,
    Event,
    Failed,
    RequestTimings,
    SpeculationStats,
    Started,
    Usage,
)
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_generation import batch_event_from_message


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation. `text` has no special tokens; `token_ids` are all generated ones."""

    request_id: str
    model: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    timings: RequestTimings
    stop_string: str = ""


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Token ids of a prompt, and the text that was tokenized (the chat template applied)."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that can be asked for. `max_length` counts prompt and generated tokens."""

    name: str
    max_length: int
    stop_token_ids: tuple[int, ...]
    vocab_size: int


@dataclass(slots=True)
class GenerationFold:
    """Gathers the events of one generation. Owns what has arrived so far."""

    request_id: str
    started: Started | None = None
    completed: Completed | None = None
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])

    def add(self, event: Event) -> None:
        """Take the next event; ProtocolError when it cannot come now."""
        if self.completed is not None:
            raise ProtocolError("an event came after the last one", request_id=self.request_id)
        match event:
            case Started():
                self.started = event
            case Delta():
                self.texts.append(event.text)
                self.token_ids.extend(event.token_ids)
            case Completed():
                self.completed = event

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    def result(self) -> GenerationResult:
        """The finished generation; ProtocolError when its end never came."""
        if self.started is None or self.completed is None:
            raise ProtocolError(
                "the answer ended before the generation was complete", request_id=self.request_id
            )
        return GenerationResult(
            request_id=self.started.request_id or self.request_id,
            model=self.started.model,
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.completed.finish_reason,
            usage=self.completed.usage,
            speculation=self.completed.speculation,
            timings=self.completed.timings,
            stop_string=self.completed.stop_string,
        )


class BatchFold:
    """Gathers the events of a batch, by prompt. Owns what has arrived so far."""

    def __init__(self, request_id: str, num_prompts: int) -> None:
        self._request_id = request_id
        self._folds = [GenerationFold(f"{request_id}-{i}") for i in range(num_prompts)]
        self._errors: dict[int, ExspecError] = {}

    def decode(self, message: pb.GenerateBatchResponse) -> tuple[int, BatchEvent]:
        """The next event with its prompt's index; an error gets its prompt's request id."""
        if message.index >= len(self._folds):
            raise ProtocolError(
                f"an event for prompt {message.index} of {len(self._folds)}",
                request_id=self._request_id,
            )
        event = batch_event_from_message(message)
        fold = self._folds[message.index]
        if isinstance(event, Failed):
            event.error.request_id = event.error.request_id or fold.request_id
            self._errors[message.index] = event.error
        else:
            fold.add(event)
        return message.index, event

    @property
    def has_ended_prompts(self) -> bool:
        """Whether the result of any prompt is known."""
        return bool(self._errors) or any(fold.completed for fold in self._folds)

    def fail_rest(self, error: ExspecError) -> None:
        """The call died: prompts that have not ended fail with it."""
        for index, fold in enumerate(self._folds):
            if fold.completed is None:
                self._errors.setdefault(index, error)

    def results(self) -> list[GenerationResult | ExspecError]:
        """Per prompt, in order, its result or its error."""
        return [
            self._errors[index] if index in self._errors else fold.result()
            for index, fold in enumerate(self._folds)
        ]


def served_models(models: Sequence[pb.ServedModel]) -> tuple[ServedModel, ...]:
    """The models of a ListModels answer."""
    return tuple(
        ServedModel(model.name, model.max_length, tuple(model.stop_token_ids), model.vocab_size)
        for model in models
    )
