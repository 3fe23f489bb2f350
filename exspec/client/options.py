"""What may be asked of a generation, as keywords, and how they become values. Pure.

Both clients read their keywords here, and only here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from exspec.client import values
from exspec.client.values import JsonSchema
from exspec.core.choosing import Grammar
from exspec.core.errors import InvalidRequestError
from exspec.core.params import (
    SamplingParams,
    SpeculationParams,
    check_num_completions,
    check_priority,
)


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate`, `stream`, `generate_batch` and `stream_batch`.

    All may be left out; None is the same as leaving a keyword out.

    How long:
        max_tokens: most tokens to generate. Default: 256, or what the context leaves if that is
            less.
        min_tokens: nothing ends the text before so many. Default: 0.
        stop: a string, or strings (at most 64), that end the text before them.
        include_stop_str_in_output: the text ends after the stop string instead.
        stop_token_ids: token ids that end it, besides the model's own.
        ignore_eos: go on after the model's own stop tokens.

    Which token is chosen; the default is what the model's generation_config.json says, else as
    stated here:
        temperature: 0 is greedy, and the default; else 0.001 to 100.
        top_k: draw from so many likeliest tokens; 0 or -1: from all.
        top_p: draw from the fewest likeliest tokens that together have so much probability.
        min_p: draw from tokens at least so likely, relative to the likeliest.
        typical_p: draw from the locally typical tokens that together have so much probability.
        repetition_penalty: above 1 makes tokens of the prompt and the text less likely.
        presence_penalty: subtracted from the logits of tokens of the text; -2 to 2.
        frequency_penalty: likewise, as often as they are in it; -2 to 2.
        logit_bias: added to logits, by token id; -100 to 100.
        bad_words: a string, or strings, that are not generated.
        bad_words_ids: token sequences that are not generated.
        banned_token_ids: tokens that are not chosen.
        allowed_token_ids: the only tokens that are chosen.
        seed: the same seed gives the same tokens; 0 to 2^64 - 1. Default: drawn, and reported.
            Sequences of a batch have seeds derived from it.

    What the text must match, one of:
        json_schema: a JSON schema: a mapping, JSON text, or a pydantic model class.
        regex: a regular expression, from the first character to the last.
        grammar: a grammar in the Lark notation, beginning with its rule `start`.

    What is reported:
        logprobs: logprobs of the tokens, and of so many likeliest ones at each place; 0 to 20.
        prompt_logprobs: likewise of the prompt's tokens, from the second on.

    How it is served, which never changes what is generated:
        num_speculative_tokens: draft tokens per round. Default: the cluster's setting.
        speculate: False is plain decoding; True is the default.
        priority: turn in the queue, -1000 to 1000: lower is sooner, 0 is usual.
        model: served name. Default: the only one.
        request_id: unique name of the call. Default: drawn here.
        timeout: seconds for the whole call, retries included. Default: the client's.
    """

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    include_stop_str_in_output: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    bad_words: str | Sequence[str] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    banned_token_ids: Sequence[int] | None
    allowed_token_ids: Sequence[int] | None
    seed: int | None
    json_schema: JsonSchema | None
    regex: str | None
    grammar: str | None
    logprobs: int | None
    prompt_logprobs: int | None
    num_speculative_tokens: int | None
    speculate: bool | None
    priority: int | None
    model: str | None
    request_id: str | None
    timeout: float | None


class BatchOptions(GenerateOptions, total=False):
    """Keywords of `generate_batch` and `stream_batch`: those of `GenerateOptions`, and

    n: sequences per prompt, 1 to 128; prompts times n at most 1024.
    """

    n: int | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What is the same for every call: its id, and the timeout if the caller gave one."""

    request_id: str
    timeout: float | None


_Reader = Callable[[str, object], object]

_SAMPLING: Mapping[str, _Reader] = {
    "max_tokens": values.count,
    "min_tokens": values.count,
    "stop": values.texts,
    "include_stop_str_in_output": values.flag,
    "stop_token_ids": values.token_ids,
    "ignore_eos": values.flag,
    "temperature": values.number,
    "top_k": values.whole,
    "top_p": values.number,
    "min_p": values.number,
    "typical_p": values.number,
    "repetition_penalty": values.number,
    "presence_penalty": values.number,
    "frequency_penalty": values.number,
    "logit_bias": values.bias,
    "bad_words": values.texts,
    "bad_words_ids": values.token_sequences,
    "banned_token_ids": values.token_ids,
    "allowed_token_ids": values.token_ids,
    "seed": values.whole,
    "logprobs": values.whole,
    "prompt_logprobs": values.whole,
}
_STRUCTURED: Mapping[str, Callable[[str, object], Grammar]] = {
    "json_schema": values.json_schema,
    "regex": values.regex,
    "grammar": values.lark,
}


class Options:
    """Keywords that were given, read one group at a time. Never changes.

    Raises:
        TypeError: an unknown keyword.
        InvalidRequestError: by any of its methods: a value of the wrong type or out of bounds.
    """

    def __init__(self, given: GenerateOptions | BatchOptions, known: type) -> None:
        for name in given:
            if name not in known.__annotations__:
                raise TypeError(f"unexpected keyword argument {name!r}")
        self._given = {name: value for name, value in given.items() if value is not None}
        drawn = self._given.get("request_id") or new_request_id()
        self.request_id = drawn if isinstance(drawn, str) else new_request_id()

    @property
    def has_max_tokens(self) -> bool:
        """Whether the caller bounded the length."""
        return "max_tokens" in self._given

    def call(self) -> CallPlan:
        """What the call itself needs."""
        values.text("request_id", self._given.get("request_id", ""))
        return CallPlan(self.request_id, self._read("timeout", values.number, None))

    def model(self) -> str:
        """The served name; empty: the only one."""
        return self._read("model", values.text, "")

    def priority(self) -> int:
        """Turn in the queue."""
        priority = self._read("priority", values.whole, 0)
        check_priority(priority)
        return priority

    def num_completions(self) -> int:
        """Sequences per prompt."""
        number = self._read("n", values.whole, 1)
        check_num_completions(number)
        return number

    def sampling(self) -> SamplingParams:
        """How tokens are chosen, and when the text ends."""
        chosen: dict[str, Any] = {
            name: read(name, self._given[name])
            for name, read in _SAMPLING.items()
            if name in self._given
        }
        return SamplingParams(**chosen, structured=self._structured())

    def speculation(self) -> SpeculationParams:
        """Whether and how far to speculate."""
        number = self._read("num_speculative_tokens", values.whole, None)
        speculates = self._read("speculate", values.flag, None)
        if number is not None and speculates is not None:
            raise InvalidRequestError(
                "speculate and num_speculative_tokens say the same: give one of them",
                field="speculate",
            )
        return SpeculationParams(0 if speculates is False else number)

    def _structured(self) -> Grammar | None:
        given = [name for name in _STRUCTURED if name in self._given]
        if len(given) > 1:
            raise InvalidRequestError(
                f"{' and '.join(given)} contradict each other: give one of them", field=given[1]
            )
        return _STRUCTURED[given[0]](given[0], self._given[given[0]]) if given else None

    def _read(self, name: str, read: _Reader, default: object) -> Any:  # noqa: ANN401
        return read(name, self._given[name]) if name in self._given else default


def new_request_id() -> str:
    """A name no other call has."""
    return f"req-{uuid.uuid4().hex}"
