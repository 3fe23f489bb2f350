"""What the clients return, and how events fold into it. Pure; both clients share all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from exspec.core.acceptance import FinishReason
from exspec.core.errors import ExspecError, ProtocolError
from exspec.core.generation import (
    BatchEvent,
    Completed,
    Delta,
    Event,
    Failed,
    RequestTimings,
    Resume,
    SpeculationStats,
    Started,
    Usage,
)
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_prompt import resume_to_message


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation. `text` has no special tokens; `token_ids` are all generated ones.

    `num_resumes`: how often its coordinator was lost and it went on; `speculation` and `timings`
    are those of the last part.
    """

    request_id: str
    model: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    timings: RequestTimings
    stop_string: str = ""
    num_resumes: int = 0


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
    """Gathers the events of one generation, over as many calls as it took. Owns what arrived."""

    request_id: str
    started: Started | None = None
    completed: Completed | None = None
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    num_resumes: int = 0

    def add(self, event: Event) -> bool:
        """Take the next event; whether it is news, which the start of a resumed call is not.

        Raises:
            ProtocolError: it cannot come now.
        """
        if self.completed is not None:
            raise ProtocolError("an event came after the last one", request_id=self.request_id)
        match event:
            case Started():
                return self._start(event)
            case Delta():
                self.texts.append(event.text)
                self.token_ids.extend(event.token_ids)
            case Completed():
                self.completed = event
        return True

    @property
    def can_resume(self) -> bool:
        """Whether a coordinator could go on with it: nothing has arrived, or also how."""
        if self.started is None:
            return not self.token_ids
        return bool(self.started.model_fingerprint)

    @property
    def model(self) -> str:
        """The served name, which the coordinator may have chosen; empty before the start."""
        return "" if self.started is None else self.started.model

    def resume(self) -> pb.Resume:
        """What a coordinator needs to go on with it."""
        if self.started is None:
            return pb.Resume()
        return resume_to_message(
            Resume(
                tuple(self.token_ids),
                self.started.model_fingerprint,
                self.started.max_tokens,
                self.started.prompt_sha256,
            )
        )

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
            num_resumes=self.num_resumes,
        )

    def _start(self, event: Started) -> bool:
        if self.started is None:
            self.started = event
            return True
        if event.model_fingerprint != self.started.model_fingerprint:
            raise ProtocolError(
                "the generation was begun again instead of resumed", request_id=self.request_id
            )
        self.num_resumes += 1
        return False


class BatchFold:
    """Gathers the events of a batch, by prompt. Owns what has arrived so far."""

    def __init__(self, request_id: str, num_prompts: int) -> None:
        self._request_id = request_id
        self._folds = [GenerationFold(f"{request_id}-{i}") for i in range(num_prompts)]
        self._errors: dict[int, ExspecError] = {}

    def add(self, index: int, event: BatchEvent) -> BatchEvent | None:
        """Take prompt `index`'s next event; it gets its prompt's request id. None: no news."""
        fold = self._folds[index]
        match event:
            case Failed():
                event.error.request_id = fold.request_id
                self._errors[index] = event.error
                return event
            case Started():
                event = replace(event, request_id=fold.request_id)
            case _:
                pass
        return event if fold.add(event) else None

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Prompts whose result is not known."""
        return tuple(
            index
            for index, fold in enumerate(self._folds)
            if fold.completed is None and index not in self._errors
        )

    @property
    def can_resume(self) -> bool:
        """Whether a coordinator could go on with what is not finished."""
        return all(self._folds[index].can_resume for index in self.unfinished)

    @property
    def model(self) -> str:
        """The served name, which the coordinator may have chosen; empty before any start."""
        return next((fold.model for fold in self._folds if fold.model), "")

    def resume(self, index: int) -> pb.Resume:
        """What a coordinator needs to go on with a prompt.

        Of one that has not started, only the model that began the others must be the same.
        """
        if self._folds[index].started is not None:
            return self._folds[index].resume()
        started = next((fold.started for fold in self._folds if fold.started), None)
        return pb.Resume(model_fingerprint=started.model_fingerprint if started else "")

    @property
    def has_ended_prompts(self) -> bool:
        """Whether the result of any prompt is known."""
        return len(self.unfinished) < len(self._folds)

    def fail_rest(self, error: ExspecError) -> None:
        """The call died: prompts that have not ended fail with it."""
        for index in self.unfinished:
            self._errors[index] = error

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
