"""From a request's parameters to the rules its tokens are chosen by.

What the request leaves out comes from the model. What cannot be done with this model is refused by
the name of its field, and so is what would leave no token to choose.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from coordinator.members import ServedModel
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import GenerationRequest
from exspec.core.params import SEED_BOUND, SamplingParams

MAX_BAD_WORD_TOKENS = 1 << 16
"""Token ids of all bad words together."""
MAX_REPORTED = 1 << 20
"""Numbers in the logprobs of one prompt."""

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Resolved:
    """All that is decided of how a request's tokens are chosen, and when they end.

    `rules` None: the best logit wins and nothing is reported. `seed` is the request's, or drawn.
    """

    rules: ChoiceRules | None
    stop_token_ids: frozenset[int]
    seed: int


def resolve(request: GenerationRequest, model: ServedModel, num_prompt_tokens: int) -> Resolved:
    """The rules of a request after a prompt of that many tokens.

    Raises:
        InvalidRequestError: a field does not fit the model, or leaves no token to choose.
    """
    sampling = request.sampling
    _check_text(sampling, model)
    _check_vocabulary(sampling, model)
    _check_reported(sampling, num_prompt_tokens)
    ending = frozenset(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ending |= frozenset(model.facts.stop_token_ids)
    _check_structured(sampling, model)
    bad_words = _bad_words(sampling, model)
    _check_left(sampling, bad_words, ending, model.facts.vocab_size)
    rules = ChoiceRules(
        num_prompt_tokens,
        **_numbers(sampling, model),
        **_tokens(sampling),
        ending_token_ids=tuple(sorted(ending)),
        bad_words=bad_words,
        seed=_seed(request, model),
        num_logprobs=sampling.logprobs,
        # Who resumes has them: they came with the first tokens.
        num_prompt_logprobs=None if _has_begun(request) else sampling.prompt_logprobs,
        grammar=sampling.structured,
    )
    return Resolved(None if rules.is_plain else rules, ending, rules.seed)


def check_ids(field: str, token_ids: Sequence[int], model: ServedModel) -> None:
    """InvalidRequestError unless all ids are in the vocabulary."""
    highest = max(token_ids, default=0)
    if highest >= model.facts.vocab_size:
        raise InvalidRequestError(
            f"{field}: token id {highest} is outside the vocabulary; ids go from 0 to "
            f"{model.facts.vocab_size - 1}",
            field=field,
        )


class _Numbers(TypedDict):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int


def _numbers(sampling: SamplingParams, model: ServedModel) -> _Numbers:
    advice = model.facts.generation
    return _Numbers(
        temperature=_temperature(sampling, model),
        top_k=max(0, _stated(sampling.top_k, advice.top_k, 0)),
        top_p=_stated(sampling.top_p, advice.top_p, 1.0),
        min_p=_stated(sampling.min_p, advice.min_p, 0.0),
        typical_p=_stated(sampling.typical_p, advice.typical_p, 1.0),
        repetition_penalty=_stated(sampling.repetition_penalty, advice.repetition_penalty, 1.0),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
    )


def _temperature(sampling: SamplingParams, model: ServedModel) -> float:
    return _stated(sampling.temperature, model.facts.generation.temperature, 0.0)


def _stated(wanted: N | None, advised: N | None, otherwise: N) -> N:
    """The request's, else the model's, else what changes nothing."""
    if wanted is not None:
        return wanted
    return otherwise if advised is None else advised


class _Tokens(TypedDict):
    logit_bias: tuple[tuple[int, float], ...]
    banned_token_ids: tuple[int, ...]
    allowed_token_ids: tuple[int, ...]


def _tokens(sampling: SamplingParams) -> _Tokens:
    """Each list once, without what changes nothing."""
    allowed, banned = set(sampling.allowed_token_ids), set(sampling.banned_token_ids)
    return _Tokens(
        logit_bias=tuple(item for item in sampling.logit_bias if item[1]),
        banned_token_ids=() if allowed else tuple(sorted(banned)),
        allowed_token_ids=tuple(sorted(allowed - banned)),
    )


def _has_begun(request: GenerationRequest) -> bool:
    return request.resume is not None and bool(request.resume.token_ids)


def _seed(request: GenerationRequest, model: ServedModel) -> int:
    """What was said when it began, else the request's own, else drawn; 0 if nothing draws on it."""
    seed = None if request.resume is None else request.resume.seed
    seed = request.sampling.seed if seed is None else seed
    if seed is not None:
        return seed
    if not _temperature(request.sampling, model):
        return 0
    if _has_begun(request):
        raise InvalidRequestError(
            "resume needs the seed that the generation started with: its tokens are drawn, and the "
            "request has no seed of its own",
            field="resume",
        )
    return secrets.randbelow(SEED_BOUND) if request.drawn_seed is None else request.drawn_seed


def _bad_words(sampling: SamplingParams, model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """Token sequences of the bad words: as they are at the beginning, and after a space."""
    words = dict.fromkeys(sampling.bad_words_ids)
    for text in sampling.bad_words:
        bare = text.lstrip()
        variants = {model.codec.encode_piece(variant) for variant in (bare, f" {bare}")}
        if not any(variants):
            raise InvalidRequestError(f"bad_words: {text!r} has no tokens", field="bad_words")
        words |= dict.fromkeys(sorted(filter(None, variants)))
    num_tokens = sum(map(len, words))
    if num_tokens > MAX_BAD_WORD_TOKENS:
        raise InvalidRequestError(
            f"bad_words and bad_words_ids come to {num_tokens} token ids; at most "
            f"{MAX_BAD_WORD_TOKENS} may be",
            field="bad_words" if sampling.bad_words else "bad_words_ids",
        )
    check_ids("bad_words", [token for word in words for token in word], model)
    return tuple(words)


def _check_text(sampling: SamplingParams, model: ServedModel) -> None:
    """What is about text needs some: without a tokenizer there are token ids only."""
    if model.codec.has_tokenizer:
        return
    wanted = {
        "stop": sampling.stop,
        "bad_words": sampling.bad_words,
        "structured": sampling.structured,
    }
    for field, value in wanted.items():
        if value:
            raise InvalidRequestError(
                f"{field} is about text, and the model has no tokenizer: token ids are all there "
                "is",
                field=field,
            )


def _check_vocabulary(sampling: SamplingParams, model: ServedModel) -> None:
    check_ids("stop_token_ids", sampling.stop_token_ids, model)
    check_ids("logit_bias", [token_id for token_id, _ in sampling.logit_bias], model)
    check_ids("banned_token_ids", sampling.banned_token_ids, model)
    check_ids("allowed_token_ids", sampling.allowed_token_ids, model)
    check_ids("bad_words_ids", [t for word in sampling.bad_words_ids for t in word], model)


def _check_reported(sampling: SamplingParams, num_prompt_tokens: int) -> None:
    """They are delivered at once."""
    if sampling.prompt_logprobs is None:
        return
    num_reported = num_prompt_tokens * (sampling.prompt_logprobs + 1)
    if num_reported > MAX_REPORTED:
        raise InvalidRequestError(
            f"prompt_logprobs: {sampling.prompt_logprobs} and the token itself, for each of "
            f"{num_prompt_tokens} tokens, are {num_reported} logprobs; {MAX_REPORTED} may be",
            field="prompt_logprobs",
        )


def _check_structured(sampling: SamplingParams, model: ServedModel) -> None:
    """Whether the text can end; the grammar itself is checked apart (`coordinator.structured`)."""
    if sampling.structured is not None and not model.facts.stop_token_ids:
        raise InvalidRequestError(
            "structured output ends with the model's stop token, and the model has none",
            field="structured",
        )


def _check_left(
    sampling: SamplingParams,
    bad_words: tuple[tuple[int, ...], ...],
    ending: frozenset[int],
    vocab_size: int,
) -> None:
    """What is never chosen, whatever came before, may not be everything."""
    singles = {word[0] for word in bad_words if len(word) == 1}
    removed = singles | set(sampling.banned_token_ids)
    allowed = set(sampling.allowed_token_ids)

    def num_left_without(ids: set[int]) -> int:
        return len(allowed - ids) if allowed else vocab_size - len(ids)

    if not num_left_without(removed):
        field = "bad_words" if singles else "banned_token_ids"
        raise InvalidRequestError(f"{field}: no token is left that may be chosen", field=field)
    if sampling.min_tokens and not num_left_without(removed | ending):
        raise InvalidRequestError(
            f"min_tokens is {sampling.min_tokens}, and all tokens that may be chosen end the text",
            field="min_tokens",
        )
