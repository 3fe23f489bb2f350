"""One sequence's rules, ready for use: what is worked out once and kept with its KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError


class Matcher(Protocol):
    """Follows a grammar along a sequence's generated tokens."""

    problem: str
    """Why the last `masks` were none at all; "" if there were some."""

    def masks(self, generated: Sequence[int], drafts: Sequence[int]) -> np.ndarray:
        """The tokens allowed after `generated`, and after each of `drafts` that is itself allowed.

        int32 `[num_masks, ceil(vocab_size / 32)]`, bit t % 32 of word t // 32 for token t;
        `num_masks` is 1 to `len(drafts) + 1`: fewer than that if a draft is not allowed. It is 0
        where the grammar cannot be followed at all: `generated` itself is not allowed, or there is
        too much to keep track of.
        """
        ...


class Choosing:
    """Made by `ModelRunner.open_choosing`, handed in with each of the sequence's rows.

    Holds what depends on the rules and the model alone, as tensors on the model's device.
    """

    def __init__(
        self,
        rules: ChoiceRules,
        vocab_size: int,
        device: torch.device | None = None,
        matcher: Matcher | None = None,
    ) -> None:
        """Raises InvalidRequestError: a token is outside the vocabulary, or none is left at all."""
        self.rules = rules
        self.matcher = matcher
        self.vocab_size = vocab_size
        self._check(vocab_size)
        place = torch.device("cpu") if device is None else device
        self.penalties = torch.tensor(
            [rules.repetition_penalty, rules.frequency_penalty, rules.presence_penalty],
            dtype=torch.float64,
            device=place,
        )
        self.biased_ids = torch.tensor([i for i, _ in rules.logit_bias], device=place).long()
        self.biases = torch.tensor(
            [bias for _, bias in rules.logit_bias], dtype=torch.float64, device=place
        )
        self.ending_ids = torch.tensor(sorted(set(rules.ending_token_ids)), device=place).long()
        self.words_after = _words_by_last_prefix_token(rules.bad_words)
        self.forbidden = self._forbidden(vocab_size, place)

    def changes_logits_at(self, position: int) -> bool:
        """Whether any rule changes logits from a position on (temperature and the like do not)."""
        rules = self.rules
        return (
            rules.needs_history
            or bool(rules.logit_bias)
            or self.forbidden is not None
            or position < rules.num_prompt_tokens + self.num_early_tokens
        )

    @property
    def problem(self) -> str:
        """What is wrong with the last place that had no token left, if more than that is known."""
        return "" if self.matcher is None else self.matcher.problem

    @property
    def num_early_tokens(self) -> int:
        """How many of the first tokens may not be ending ones."""
        return self.rules.min_tokens if self.rules.ending_token_ids else 0

    def _check(self, vocab_size: int) -> None:
        rules = self.rules
        named = {
            "logit_bias": [token for token, _ in rules.logit_bias],
            "stop_token_ids": rules.ending_token_ids,
            "bad_words_ids": [token for word in rules.bad_words for token in word],
            "banned_token_ids": rules.banned_token_ids,
            "allowed_token_ids": rules.allowed_token_ids,
        }
        for field, tokens in named.items():
            if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
                wrong = next(token for token in tokens if not 0 <= token < vocab_size)
                raise InvalidRequestError(
                    f"{field}: token id {wrong} is outside the vocabulary of {vocab_size}",
                    field=field,
                )

    def _forbidden(self, vocab_size: int, device: torch.device) -> torch.Tensor | None:
        """Tokens `[vocab_size]` that are never chosen; None if all may be."""
        rules = self.rules
        banned = {*rules.banned_token_ids, *(word[0] for word in rules.bad_words if len(word) == 1)}
        if not banned and not rules.allowed_token_ids:
            return None
        forbidden = torch.full((vocab_size,), bool(rules.allowed_token_ids))
        forbidden[list(rules.allowed_token_ids)] = False
        forbidden[list(banned)] = True
        if forbidden.all():
            field = "allowed_token_ids" if rules.allowed_token_ids else "banned_token_ids"
            raise InvalidRequestError(f"{field}: no token is left to choose", field=field)
        return forbidden.to(device)


@dataclass(frozen=True, slots=True)
class Asked:
    """The consecutive choices wanted of one sequence in a pass.

    The first is of the token at `first_position` of the sequence, with `tokens` before it (all of
    them if the rules need them, else none or any); each further one comes after one more of
    `drafts`.
    """

    choosing: Choosing
    first_position: int
    tokens: Sequence[int]
    drafts: Sequence[int]

    @property
    def num_places(self) -> int:
        """How many choices."""
        return len(self.drafts) + 1


def _words_by_last_prefix_token(
    words: Sequence[Sequence[int]],
) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """Bad words of several tokens: (all but the last, the last), by the last but one."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for word in words:
        if len(word) > 1:
            found.setdefault(word[-2], []).append((tuple(word[:-1]), word[-1]))
    return found
