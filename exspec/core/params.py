"""What a request asks for, checked: limits, how tokens are chosen, stopping, speculation.

A value of these types is valid by construction; the messages name the field and its bound. What
can only be judged with the model at hand (ids, the context) is the coordinator's to check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from exspec.core.choosing import Grammar
from exspec.core.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 256
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_SPECULATIVE_TOKENS = 64
MAX_PRIORITY = 1000
MIN_TEMPERATURE = 0.001
MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
"""Characters, or token ids."""
MAX_LISTED_TOKEN_IDS = 1 << 18
MAX_GRAMMAR_LENGTH = 1 << 16
MAX_COMPLETIONS = 128
SEED_BOUND = 1 << 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a sequence ends.

    None where it is allowed means: the default of the model's generation_config.json; without one
    decoding is greedy and nothing is cut. `exspec.core.choosing.ChoiceRules` says what each
    parameter does, and in which order. `seed` None: one is drawn, and reported.

    `max_tokens` counts generated tokens. `stop` strings end the text before them, or after them
    with `include_stop_str_in_output`; `stop_token_ids` end it with the token; those of the model's
    generation_config.json are added unless `ignore_eos`. None of them ends it before `min_tokens`.
    `bad_words` never appear, nor do the token sequences `bad_words_ids`. `logprobs` and
    `prompt_logprobs`: how many of the likeliest tokens to report at each position besides the
    token itself. `structured`: what the text must match.

    Raises:
        InvalidRequestError: when a field is out of bounds, or two contradict each other.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    structured: Grammar | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", field="max_tokens"
            )
        self._check_numbers()
        self._check_stops()
        self._check_tokens()
        self._check_words()
        self._check_contradictions()

    def _check_numbers(self) -> None:
        if self.temperature:
            _check("temperature, if not 0,", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
        elif self.temperature is not None and math.isnan(self.temperature):
            _check("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _check("top_k", self.top_k, -1, 2**31 - 1)
        _check("top_p", self.top_p, 0, 1, is_open=True)
        _check("min_p", self.min_p, 0, 1)
        _check("typical_p", self.typical_p, 0, 1, is_open=True)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check("seed", self.seed, 0, SEED_BOUND - 1)
        _check("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)

    def _check_stops(self) -> None:
        _check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_LENGTH)
        _check_size("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, "ids")

    def _check_tokens(self) -> None:
        _check_size("logit_bias", self.logit_bias, MAX_BIASED_TOKENS, "ids")
        for token_id, bias in self.logit_bias:
            _check(f"logit_bias of token {token_id}", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if len({token_id for token_id, _ in self.logit_bias}) != len(self.logit_bias):
            raise InvalidRequestError("logit_bias names a token id twice", field="logit_bias")
        _check_size("banned_token_ids", self.banned_token_ids, MAX_LISTED_TOKEN_IDS, "ids")
        _check_size("allowed_token_ids", self.allowed_token_ids, MAX_LISTED_TOKEN_IDS, "ids")

    def _check_words(self) -> None:
        _check_strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
        _check_size("bad_words_ids", self.bad_words_ids, MAX_BAD_WORDS, "lists of ids")
        for ids in self.bad_words_ids:
            if not 1 <= len(ids) <= MAX_BAD_WORD_LENGTH:
                raise InvalidRequestError(
                    f"each of bad_words_ids must have 1 to {MAX_BAD_WORD_LENGTH} ids, "
                    f"got {len(ids)}",
                    field="bad_words_ids",
                )

    def _check_contradictions(self) -> None:
        allowed = set(self.allowed_token_ids)
        if allowed and allowed <= set(self.banned_token_ids):
            raise InvalidRequestError(
                "banned_token_ids bans all of allowed_token_ids: no token is left",
                field="banned_token_ids",
            )
        if self.structured is None:
            return
        if not 1 <= len(self.structured.text) <= MAX_GRAMMAR_LENGTH:
            raise InvalidRequestError(
                f"structured must have 1 to {MAX_GRAMMAR_LENGTH} characters, got "
                f"{len(self.structured.text)}",
                field="structured",
            )
        if self.ignore_eos:
            raise InvalidRequestError(
                "structured output ends with the model's stop token, so ignore_eos contradicts it",
                field="ignore_eos",
            )


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether and how far to speculate for one request; never changes what is generated.

    `num_speculative_tokens` None means the cluster's own setting; 0 means plain decoding.

    Raises:
        InvalidRequestError: when the number is out of bounds.
    """

    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        number = self.num_speculative_tokens
        if number is not None and not 0 <= number <= MAX_SPECULATIVE_TOKENS:
            raise InvalidRequestError(
                f"num_speculative_tokens must be 0 to {MAX_SPECULATIVE_TOKENS}, got {number}",
                field="num_speculative_tokens",
            )


def check_priority(priority: int) -> None:
    """InvalidRequestError unless a turn in the queue is within its bounds."""
    _check("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)


def check_num_completions(number: int) -> None:
    """InvalidRequestError unless so many completions may be asked for of one prompt."""
    _check("n", number, 1, MAX_COMPLETIONS)


def _check(
    name: str, value: float | None, low: float, high: float, *, is_open: bool = False
) -> None:
    """Bounds of a number; `is_open`: the lower one does not belong to them. None is no number."""
    if value is None or (low <= value <= high and not (is_open and value == low)):
        return
    first, last = _shown(low), _shown(high)
    bounds = f"more than {first} and at most {last}" if is_open else f"{first} to {last}"
    field = name.partition(",")[0].partition(" ")[0]
    raise InvalidRequestError(f"{name} must be {bounds}, got {_shown(value)}", field=field)


def _shown(number: float) -> str:
    """Whole numbers in full: bounds of 64 bits are no use when rounded."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def _check_size(field: str, listed: Sequence[object], most: int, what: str) -> None:
    if len(listed) > most:
        raise InvalidRequestError(
            f"{field} may hold at most {most} {what}, got {len(listed)}", field=field
        )


def _check_strings(field: str, texts: Sequence[str], most: int, longest: int) -> None:
    _check_size(field, texts, most, "strings")
    for text in texts:
        if not 1 <= len(text) <= longest:
            raise InvalidRequestError(
                f"each string of {field} must have 1 to {longest} characters, got one of "
                f"{len(text)}",
                field=field,
            )
