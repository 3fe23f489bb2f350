"""What a request asks for, checked: prompt, limits, stopping, speculation.

A value of these types is valid by construction; the messages name the field and its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from exspec.core.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 256
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_SPECULATIVE_TOKENS = 64
MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when a sequence ends. Decoding is greedy.

    `max_tokens` counts generated tokens. `stop` strings end the text before them, `stop_token_ids`
    end it with the token; those of the model's generation_config.json are added unless
    `ignore_eos`.

    Raises:
        InvalidRequestError: when a field is out of bounds.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", field="max_tokens"
            )
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop may hold at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}",
                field="stop",
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_LENGTH:
                raise InvalidRequestError(
                    f"each stop string must have 1 to {MAX_STOP_STRING_LENGTH} characters, "
                    f"got one of {len(text)}",
                    field="stop",
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"stop_token_ids may hold at most {MAX_STOP_TOKEN_IDS} ids, "
                f"got {len(self.stop_token_ids)}",
                field="stop_token_ids",
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
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}", field="priority"
        )
