"""What the fake coordinator answers: scripted replies as events. Pure but for its pauses."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from exspec.core.acceptance import FinishReason
from exspec.core.choosing import TokenLogprobs
from exspec.core.cluster import ClusterStatus
from exspec.core.errors import ExspecError
from exspec.core.generation import (
    BatchEvent,
    ChatPrompt,
    Completed,
    Delta,
    Event,
    Failed,
    GenerationRequest,
    Prompt,
    RequestTimings,
    SpeculationStats,
    Started,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from exspec.v1 import generation_pb2 as pb

FAKE_MODEL_NAME = "fake-model"
FAKE_FINGERPRINT = "fake-fingerprint"
FAKE_SEED = 2**63 + 11
"""What is "drawn" for sampled requests without a seed."""
FAKE_MODEL = pb.ServedModel(
    name=FAKE_MODEL_NAME, max_length=2048, stop_token_ids=[0], vocab_size=256
)


@dataclass(frozen=True, slots=True)
class FakeReply:
    """One scripted answer: `text`, a pause before each token of it, then an error if there is one.

    The text comes as one delta per character. `max_tokens` of the request cuts it; other
    parameters that would change it do nothing. Logprobs are those of `logprobs_of`. Each of
    `lose_after` is a number of characters after which the coordinator is lost once: the call
    breaks, and a client that resumes it gets the rest.
    """

    text: str = ""
    error: ExspecError | None = None
    delay_seconds: float = 0.0
    lose_after: tuple[int, ...] = ()
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    timings: RequestTimings = field(default_factory=RequestTimings)


class CoordinatorLost(Exception):  # noqa: N818 - it is no error of ours, but the end of a call
    """The planned loss of the coordinator; `rest` is the reply to who resumes the prompt."""

    def __init__(self, prompt: Prompt, rest: FakeReply) -> None:
        super().__init__("the coordinator was lost, as planned")
        self.prompt = prompt
        self.rest = rest


@dataclass(frozen=True, slots=True)
class SingleAnswer:
    """The answer to one request."""

    request: GenerationRequest
    reply: FakeReply
    stopping: threading.Event

    def events(self, is_active: Callable[[], bool]) -> Iterator[Event]:
        """Events while the caller listens; raises the scripted error."""
        error = self.reply.error
        if error is not None and not self.reply.text:
            raise self._named(error)
        yield self._started()
        num_tokens = 0 if self.request.resume is None else len(self.request.resume.token_ids)
        finish = FinishReason.STOP_TOKEN
        for index, character in enumerate(self.reply.text):
            self._lose_if_planned(index)
            self._pause(is_active)
            if not is_active():
                return
            tokens = tokens_of(character)
            if num_tokens + len(tokens) > self.request.sampling.max_tokens:
                finish = FinishReason.LENGTH
                break
            yield self._delta(character, tokens, is_first=num_tokens == 0)
            num_tokens += len(tokens)
        self._lose_if_planned(len(self.reply.text))
        if error is not None:
            raise self._named(error)
        usage = Usage(len(self._prompt_tokens), num_tokens)
        yield Completed(finish, usage, self.reply.speculation, self.reply.timings)

    @property
    def _prompt_tokens(self) -> tuple[int, ...]:
        return tokens_of(prompt_text(self.request.prompt))

    def _delta(self, text: str, tokens: tuple[int, ...], *, is_first: bool) -> Delta:
        sampling = self.request.sampling
        prompt_tokens = self._prompt_tokens[1:] if is_first else ()
        return Delta(
            text,
            tokens,
            logprobs_of(tokens, sampling.logprobs),
            logprobs_of(prompt_tokens, sampling.prompt_logprobs),
        )

    def _started(self) -> Started:
        return Started(
            self.request.request_id,
            FAKE_MODEL_NAME,
            len(self._prompt_tokens),
            FAKE_FINGERPRINT,
            self.request.sampling.max_tokens,
            seed=self._seed,
        )

    @property
    def _seed(self) -> int:
        resume, sampling = self.request.resume, self.request.sampling
        given = sampling.seed if resume is None or resume.seed is None else resume.seed
        drawn = FAKE_SEED if sampling.temperature else 0
        return drawn if given is None else given

    def _lose_if_planned(self, num_characters: int) -> None:
        planned = self.reply.lose_after
        if planned and planned[0] <= num_characters:
            rest = replace(
                self.reply,
                text=self.reply.text[num_characters:],
                lose_after=tuple(place - num_characters for place in planned[1:]),
            )
            raise CoordinatorLost(self.request.prompt, rest)

    def _pause(self, is_active: Callable[[], bool]) -> None:
        """Wait in small steps, so that a caller who left is noticed."""
        left = self.reply.delay_seconds
        while left > 0 and is_active() and not self.stopping.is_set():
            self.stopping.wait(min(left, 0.02))
            left -= 0.02

    def _named(self, error: ExspecError) -> ExspecError:
        error.request_id = self.request.request_id
        return error


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answers to the sequences of a batch, one after the other; one that fails fails alone."""

    items: Sequence[pb.GenerateRequest]
    take: Callable[[pb.GenerateRequest], SingleAnswer]

    def events(self, is_active: Callable[[], bool]) -> Iterator[tuple[int, BatchEvent]]:
        """Events with the index of their sequence, while the caller listens."""
        for index, item in enumerate(self.items):
            try:
                for event in self.take(item).events(is_active):
                    yield index, event
            except ExspecError as error:
                yield index, Failed(error)


def default_status() -> ClusterStatus:
    """A cluster that is ready."""
    return ClusterStatus(version="fake", is_ready=True, model=FAKE_MODEL_NAME, policy="eqspec")


def logprobs_of(token_ids: Sequence[int], number: int | None) -> tuple[TokenLogprobs, ...]:
    """What the fake thinks of tokens: each has probability 1/2, the next id 1/4, and so on."""
    if number is None:
        return ()
    return tuple(
        TokenLogprobs(
            token_id,
            -math.log(2),
            tuple(((token_id + i) % 256, -(i + 1) * math.log(2)) for i in range(number)),
        )
        for token_id in token_ids
    )


def prompt_text(prompt: Prompt) -> str:
    """A prompt as the text the fake tokenizes."""
    match prompt:
        case TextPrompt(text):
            return text
        case TokenPrompt(token_ids):
            return text_of(token_ids)
        case ChatPrompt(messages):
            return "".join(f"{message.role}: {message.content}\n" for message in messages)


def tokens_of(text: str) -> tuple[int, ...]:
    """The fake's tokenizer: UTF-8 bytes."""
    return tuple(text.encode())


def text_of(token_ids: Sequence[int]) -> str:
    """Back from tokens to text."""
    return bytes(token_id % 256 for token_id in token_ids).decode(errors="replace")
