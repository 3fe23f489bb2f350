"""What an audit asks for of the choice of tokens, stated in full, and the rules it comes to.

A request leaves nothing to the advice of the model's makers, so that its rules are known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from exspec.client import GenerateOptions
from exspec.client.options import Options
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError
from exspec.core.params import SamplingParams

_STATED: GenerateOptions = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "seed": 0,
}
_REFUSED = {
    "bad_words": "strings become tokens at the coordinator; name tokens to ban instead",
    "logprobs": "tokens are compared, not what is said about them",
    "prompt_logprobs": "tokens are compared, not what is said about them",
}


@dataclass(frozen=True, slots=True)
class AuditedSampling:
    """The keywords of every request, those read as values, and those that were given as text."""

    options: GenerateOptions
    params: SamplingParams
    summary: str = ""

    @classmethod
    def of(cls, given: Mapping[str, object]) -> AuditedSampling:
        """From keywords of `GenerateOptions`; None was not given.

        Raises:
            InvalidRequestError: a value is out of bounds, or cannot be audited.
        """
        chosen = {
            n: value for n, value in given.items() if value is not None and value is not False
        }
        for name, reason in _REFUSED.items():
            if name in chosen:
                raise InvalidRequestError(f"{name} cannot be audited: {reason}", field=name)
        options = cast("GenerateOptions", {**_STATED, **chosen})
        params = Options(options, GenerateOptions).sampling()
        return cls(options, params, ", ".join(f"{name} {chosen[name]}" for name in chosen))

    def ending_token_ids(self, of_model: Collection[int]) -> tuple[int, ...]:
        """What ends a sequence, given the model's own stop tokens."""
        own = () if self.params.ignore_eos else of_model
        return tuple(sorted({*own, *self.params.stop_token_ids}))

    def rules(
        self, num_prompt_tokens: int, ending_token_ids: tuple[int, ...]
    ) -> ChoiceRules | None:
        """What the coordinator has to make of it; None: the best logit wins."""
        asked = self.params
        rules = ChoiceRules(
            num_prompt_tokens,
            temperature=asked.temperature or 0.0,
            top_k=max(0, asked.top_k or 0),
            top_p=1.0 if asked.top_p is None else asked.top_p,
            min_p=asked.min_p or 0.0,
            typical_p=1.0 if asked.typical_p is None else asked.typical_p,
            repetition_penalty=asked.repetition_penalty or 1.0,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            logit_bias=asked.logit_bias,
            min_tokens=asked.min_tokens,
            ending_token_ids=ending_token_ids,
            bad_words=asked.bad_words_ids,
            banned_token_ids=asked.banned_token_ids,
            allowed_token_ids=asked.allowed_token_ids,
            seed=asked.seed or 0,
            grammar=asked.structured,
        )
        return None if rules.is_plain else rules
