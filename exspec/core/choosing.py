"""What decides which token comes next, apart from the model's numbers; and what is said about it.

Resolved from a request by the coordinator, the same for target and draft. Values only; what they
do to logits is `exspec.engine.choosing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_DERIVED = 0x6578737065632D6E
"""Keeps derived seeds apart from what noise is drawn from."""


class GrammarKind(Enum):
    """Which language a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the generated text must match, from its first character to its last."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class ChoiceRules:
    """How a sequence's tokens are chosen; the choice at a position is a function of these, of the
    tokens before it and of the model's logits there.

    In this order: `logit_bias` is added; `repetition_penalty` applies to tokens of the prompt and
    the generated ones, `frequency_penalty` and `presence_penalty` to the generated ones; banned
    tokens are removed (`allowed_token_ids` empty: all are allowed; `ending_token_ids` until
    `min_tokens` were generated; the last token of a bad word after the others of it; what the
    grammar does not allow). Then the best token is chosen if `temperature` is 0. Else logits are
    divided by it; `top_k` (0: off), `top_p` (1: off), `min_p` (0: off) and `typical_p` (1: off)
    each remove tokens, and what is left is drawn from with noise keyed by (`seed`, position in the
    sequence, token).

    `num_prompt_tokens` is where the generated tokens begin. `num_logprobs` and
    `num_prompt_logprobs` say how many of the likeliest tokens are reported besides the token itself
    (None: nothing is).
    """

    num_prompt_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ending_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    seed: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether counts of earlier tokens matter."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def needs_history(self) -> bool:
        """Whether the tokens before the ones that are fed matter."""
        return self.has_penalties or bool(self.bad_words) or self.grammar is not None

    @property
    def is_plain(self) -> bool:
        """Whether the best logit wins and nothing is reported: nothing to send to a worker."""
        return self == ChoiceRules(
            self.num_prompt_tokens,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            ending_token_ids=self.ending_token_ids,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the target's own probabilities at one position, before any rule.

    `top` holds the likeliest tokens in falling order (the lower id first among equals).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of sequence `index` of a call with this seed; that of the first is `seed`.

    Output number `index` of splitmix64 (Steele et al., OOPSLA 2014), seeded with what `seed` is
    mixed to.
    """
    if index == 0:
        return seed
    return _mix((_mix(seed ^ _DERIVED) + index * _GOLDEN) & _MASK)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
