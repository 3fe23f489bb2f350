"""How events fold into what the clients return, over as many calls as it took. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from exspec.client.results import BatchResult, GenerationResult
from exspec.core.choosing import TokenLogprobs, derive_seed
from exspec.core.errors import ExspecError, ProtocolError
from exspec.core.generation import BatchEvent, Completed, Delta, Event, Failed, Resume, Started
from exspec.v1 import generation_pb2 as pb
from exspec.wire.convert_prompt import resume_to_message


@dataclass(slots=True)
class GenerationFold:
    """Gathers the events of one generation, over as many calls as it took. Owns what arrived."""

    request_id: str
    started: Started | None = None
    completed: Completed | None = None
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_resumes: int = 0
    num_resumed_tokens: int = 0

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
                self._extend(event)
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
                self.started.seed,
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
            num_resumed_tokens=self.num_resumed_tokens,
            seed=self.started.seed,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
        )

    def _extend(self, delta: Delta) -> None:
        if delta.logprobs and len(delta.logprobs) != len(delta.token_ids):
            raise ProtocolError(
                f"{len(delta.logprobs)} logprobs came for {len(delta.token_ids)} tokens",
                request_id=self.request_id,
            )
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs

    def _start(self, event: Started) -> bool:
        if self.started is None:
            self.started = event
            return True
        if event.model_fingerprint != self.started.model_fingerprint:
            raise ProtocolError(
                "the generation was begun again instead of resumed", request_id=self.request_id
            )
        self.num_resumes += 1
        self.num_resumed_tokens = len(self.token_ids)
        return False


class BatchFold:
    """Gathers the events of a batch, by sequence. Owns what has arrived so far."""

    def __init__(self, request_id: str, num_prompts: int, n: int = 1) -> None:
        self._n = n
        self._folds = [GenerationFold(f"{request_id}-{i}") for i in range(num_prompts * n)]
        self._errors: dict[int, ExspecError] = {}

    def add(self, index: int, event: BatchEvent) -> BatchEvent | None:
        """Take sequence `index`'s next event; it gets its request id. None: no news."""
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
        """Sequences whose result is not known."""
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

    def resume(self, index: int, seed: int | None) -> pb.Resume:
        """What a coordinator needs to go on with a sequence; `seed` is the batch's own.

        Of one that has not started, only the model that began the others must be the same.
        """
        if self._folds[index].started is not None:
            return self._folds[index].resume()
        started = next((fold.started for fold in self._folds if fold.started), None)
        return pb.Resume(
            model_fingerprint=started.model_fingerprint if started else "",
            seed=None if seed is None else derive_seed(seed, index),
        )

    @property
    def has_ended_sequences(self) -> bool:
        """Whether the result of any sequence is known."""
        return len(self.unfinished) < len(self._folds)

    def fail_rest(self, error: ExspecError) -> None:
        """The call died: sequences that have not ended fail with it."""
        for index in self.unfinished:
            self._errors[index] = error

    def result(self) -> BatchResult:
        """Of every sequence, its result or its error."""
        results = tuple(
            self._errors[index] if index in self._errors else fold.result()
            for index, fold in enumerate(self._folds)
        )
        return BatchResult(results, self._n)
