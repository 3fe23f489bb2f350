"""What the clients of a soak ask for, drawn from a seed, and the judgement of what they got. Pure.

Every answer is compared with plain decoding: whole ones token by token and letter by letter,
abandoned ones up to where they were left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from exspec.core.acceptance import FinishReason
from exspec.core.errors import (
    CallerError,
    CapacityError,
    DeadlineExceededError,
    ExspecError,
    ProtocolError,
    WorkerLostError,
)
from exspec.core.generation import ChatMessage
from tests.chaos.models import MAX_LENGTH, STOP_IDS, Pair, Truth

MAX_TOKENS = 60
LONGEST_PROMPT = 130
NUM_SAMPLES = 40
WORDS = ("the", "draft", "is", "often", "wrong", "ünïcode", "and", "42", "tokens", "\n")


class Kind(Enum):
    """What a client does."""

    GENERATE = "generate"
    STREAM = "stream"
    BATCH = "batch"
    STOP_STRING = "stop string"
    CANCEL = "cancel"
    DEADLINE = "deadline"
    BAD = "bad request"


WEIGHTS = {
    Kind.GENERATE: 6, Kind.STREAM: 6, Kind.BATCH: 2, Kind.STOP_STRING: 2, Kind.CANCEL: 2,
    Kind.DEADLINE: 2, Kind.BAD: 1,
}  # fmt: skip
BAD_OPTIONS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 10 * MAX_LENGTH},
    {"model": "somebody else's"},
    {"stop_token_ids": [10**6]},
    {"num_speculative_tokens": 65},
    {"priority": 1001},
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt as a client gives it, its tokens, and what follows them."""

    prompt: Any
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got of one prompt. No finish reason: it left before the end."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One call; several samples make a batch. `patience`: a deadline, or events before leaving."""

    kind: Kind
    samples: tuple[Sample, ...]
    options: dict[str, Any] = field(default_factory=dict)
    patience: float = 0.0


class Verdict(Enum):
    """What a request's end is worth. The last three may not happen."""

    RIGHT = "right"
    ABANDONED = "abandoned"
    REFUSED = "refused"
    WRONG = "wrong"
    UNTYPED = "unexpected error"
    LOST = "lost"


FORBIDDEN = (Verdict.WRONG, Verdict.UNTYPED, Verdict.LOST)


class Catalog:
    """The samples and the tokenizer. Knows every right answer."""

    def __init__(self, pair: Pair, truth: Truth, random: Random) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(pair.target) / "tokenizer.json"))
        self.samples = tuple(self._sample(truth, random, index) for index in range(NUM_SAMPLES))

    def draw(self, random: Random) -> Order:
        """What a client does next."""
        (kind,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        num_samples = random.randrange(2, 7) if kind is Kind.BATCH else 1
        samples = tuple(random.choice(self.samples) for _ in range(num_samples))
        options: dict[str, Any] = {
            "max_tokens": random.randrange(1, MAX_TOKENS + 1),
            "ignore_eos": random.random() < 0.7,
            "num_speculative_tokens": random.choice([None, None, None, 0, 1, 8]),
            "priority": random.choice([0, 0, 0, -5, 5]),
        }
        if kind is Kind.BAD:
            return Order(kind, samples, options | random.choice(BAD_OPTIONS))
        if kind is Kind.STOP_STRING:
            options["stop"] = [self._stop_string(random, samples[0])]
        patience = random.randrange(1, 12) if kind is Kind.CANCEL else random.uniform(0.01, 1.0)
        return Order(kind, samples, options, patience)

    def expected(self, sample: Sample, options: dict[str, Any]) -> Answer:
        """The right answer."""
        tokens = sample.tokens[: options["max_tokens"]]
        finish = FinishReason.LENGTH
        stops = () if options["ignore_eos"] else STOP_IDS
        for index, token in enumerate(tokens):
            text = self._text(tokens[: index + 1])
            for stop in options.get("stop", ()):
                if stop in text:
                    cut = text[: text.index(stop)]
                    return self._answer(sample, tokens[: index + 1], cut, FinishReason.STOP_STRING)
            if token in stops:
                tokens, finish = tokens[: index + 1], FinishReason.STOP_TOKEN
                break
        return self._answer(sample, tokens, self._text(tokens), finish)

    def judge(self, order: Order, index: int, answer: Answer | ExspecError) -> Verdict:
        """What the end of prompt `index` is worth."""
        if isinstance(answer, ExspecError):
            return _judge_error(order, answer)
        if order.kind is Kind.BAD:
            return Verdict.WRONG
        right = self.expected(order.samples[index], order.options)
        if answer.finish_reason is None:
            is_right = right.tokens[: len(answer.tokens)] == answer.tokens
            is_right = is_right and right.text.startswith(answer.text)
            return Verdict.ABANDONED if is_right else Verdict.WRONG
        return Verdict.RIGHT if answer == right else Verdict.WRONG

    @staticmethod
    def _answer(sample: Sample, tokens: Sequence[int], text: str, finish: FinishReason) -> Answer:
        return Answer(tuple(tokens), text, finish, len(sample.prompt_tokens))

    def _sample(self, truth: Truth, random: Random, index: int) -> Sample:
        if index % 4 == 0:
            prompt: Any = " ".join(random.choices(WORDS, k=random.randrange(1, 12)))
            tokens = tuple(self._tokenizer.encode(prompt, add_special_tokens=False).ids)
        elif index % 4 == 1:
            content = " ".join(random.choices(WORDS, k=random.randrange(1, 8)))
            prompt = [ChatMessage("user", content)]
            rendered = f"<user>{content}<end><assistant>"
            tokens = tuple(self._tokenizer.encode(rendered, add_special_tokens=False).ids)
        else:
            tokens = tuple(
                random.randrange(2, 260) for _ in range(random.randrange(1, LONGEST_PROMPT))
            )
            prompt = list(tokens)
        return Sample(prompt, tokens, truth.tokens(tokens, MAX_TOKENS))

    def _stop_string(self, random: Random, sample: Sample) -> str:
        """Something that comes up, or does not."""
        text = self._text(sample.tokens).replace("�", "")
        return random.choice([*text[3:40], "never"])

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _judge_error(order: Order, error: ExspecError) -> Verdict:
    """Errors that are nobody's bug: nobody could take it, its workers died, its own fault.

    Who asks to be served after all others may wait as long as there are others.
    """
    allowed: tuple[type[ExspecError], ...] = (CapacityError, WorkerLostError)
    if order.kind is Kind.DEADLINE or order.options["priority"] > 0:
        allowed += (DeadlineExceededError,)
    if order.kind is Kind.BAD:
        allowed += (CallerError,)
    is_allowed = isinstance(error, allowed) or type(error).__name__ == "PeerError"
    return (
        Verdict.REFUSED if is_allowed and not isinstance(error, ProtocolError) else Verdict.UNTYPED
    )
