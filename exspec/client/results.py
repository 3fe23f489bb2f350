"""What the clients return. Pure; both clients share all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from exspec.core.acceptance import FinishReason
from exspec.core.choosing import TokenLogprobs
from exspec.core.errors import ExspecError
from exspec.core.generation import RequestTimings, SpeculationStats, Usage
from exspec.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation. `text` has no special tokens; `token_ids` are all generated ones.

    `seed` is the request's, or the one that was drawn for it: with it the same comes again (0 if
    it has none and decoding is greedy). If they were asked for, `logprobs` has one item per token
    id, and `prompt_logprobs` one per token of the prompt from its second on. `num_resumes`: how
    often its coordinator was lost and it went on; `speculation` and `timings` are those of the
    last part, which began after `num_resumed_tokens`.
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
    num_resumed_tokens: int = 0
    seed: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def seconds_per_token(self) -> float:
        """Mean time per token after the first one (TPOT); 0.0 before there is a second."""
        number = self.usage.num_generated_tokens - self.num_resumed_tokens
        return self.timings.seconds_per_token(number)


@dataclass(frozen=True, slots=True)
class BatchResult(Sequence[GenerationResult | ExspecError]):
    """What became of each sequence of a batch, its result or its error: prompt by prompt, `n` of
    each. It is itself the sequence of all of them.
    """

    results: tuple[GenerationResult | ExspecError, ...]
    n: int = 1

    @property
    def num_prompts(self) -> int:
        """How many prompts there were."""
        return len(self.results) // self.n

    def of_prompt(self, index: int) -> tuple[GenerationResult | ExspecError, ...]:
        """What became of the sequences of one prompt; IndexError if there is none such."""
        first = range(self.num_prompts)[index] * self.n
        return self.results[first : first + self.n]

    @overload
    def __getitem__(self, index: int) -> GenerationResult | ExspecError: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[GenerationResult | ExspecError, ...]: ...

    def __getitem__(
        self, index: int | slice
    ) -> GenerationResult | ExspecError | tuple[GenerationResult | ExspecError, ...]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)


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


def served_models(models: Sequence[pb.ServedModel]) -> tuple[ServedModel, ...]:
    """The models of a ListModels answer."""
    return tuple(
        ServedModel(model.name, model.max_length, tuple(model.stop_token_ids), model.vocab_size)
        for model in models
    )
