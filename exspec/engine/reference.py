"""The judge: plain decoding of one sequence with transformers' own cache and attention.

Deliberately shares nothing with our KV code, so that it can find its faults; nor with how we choose
(see `exspec.engine.reference_sampler`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.errors import InvalidRequestError
from exspec.engine.kv.hf_adapter import cache_keyword, native_attention, native_cache
from exspec.engine.loading import LoadedModel
from exspec.engine.reference_margins import needed_change
from exspec.engine.reference_sampler import ReferenceSampler


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What plain decoding gives. `is_stuck`: it ended because the rules left no token.

    `logprobs` has an item per token, `prompt_logprobs` one per token of the prompt but the first;
    both are empty unless the rules want them.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]
    is_stuck: bool


@dataclass(frozen=True, slots=True)
class TopTwo:
    """The two best tokens at a position (after noise, if something is drawn).

    `margin` is by how much two logits would have to come nearer for the second to be chosen.
    """

    first_id: int
    second_id: int
    margin: float


def generate_plain(
    loaded: LoadedModel,
    prompt_tokens: Sequence[int],
    max_tokens: int,
    stop_token_ids: Collection[int],
    rules: ChoiceRules | None = None,
) -> tuple[int, ...]:
    """Up to `max_tokens` tokens after the prompt, cut right after the first stop token.

    Without `rules` they are the best ones.
    """
    sampler = sampler_of(loaded, len(prompt_tokens), rules)
    return decode_plain(loaded, prompt_tokens, max_tokens, stop_token_ids, sampler).tokens


def sampler_of(
    loaded: LoadedModel, num_prompt_tokens: int, rules: ChoiceRules | None
) -> ReferenceSampler:
    """How the judge chooses by these rules; None: greedily."""
    rules = rules or ChoiceRules(num_prompt_tokens)
    if rules.grammar is None:
        return ReferenceSampler(rules)
    from exspec.engine.reference_grammar import ReferenceGrammar  # llguidance is an extra

    return ReferenceSampler(rules, ReferenceGrammar(loaded, rules.grammar))


@torch.inference_mode()
def decode_plain(
    loaded: LoadedModel,
    prompt_tokens: Sequence[int],
    max_tokens: int,
    stop_token_ids: Collection[int],
    sampler: ReferenceSampler,
) -> PlainRun:
    """The same, with all that is reported besides the tokens."""
    if not prompt_tokens:
        raise InvalidRequestError("a prompt needs at least one token", field="prompt_tokens")
    model = loaded.model
    arguments = {cache_keyword(model): native_cache(model), "use_cache": True}
    log, logprobs = list(prompt_tokens), list[TokenLogprobs]()
    about_prompt: tuple[TokenLogprobs, ...] = ()
    is_stuck, fed = False, log
    with native_attention(model):
        while len(log) < len(prompt_tokens) + max_tokens:
            logits = _logits(model, fed, len(log) - len(fed), arguments)
            if fed is log:
                about_prompt = _prompt_logprobs(sampler, logits, log)
            token = sampler.choose(logits[-1], log)
            if token is None:
                is_stuck = True
                break
            if sampler.rules.num_logprobs is not None:
                logprobs.append(sampler.logprobs(logits[-1], token, sampler.rules.num_logprobs))
            fed = [token]
            log = [*log, token]
            if token in stop_token_ids:
                break
    return PlainRun(tuple(log[len(prompt_tokens) :]), tuple(logprobs), about_prompt, is_stuck)


@torch.inference_mode()
def top2_margin(
    loaded: LoadedModel, tokens: Sequence[int], position: int, rules: ChoiceRules | None = None
) -> TopTwo:
    """How clear the choice of the token at index `position` is, given `tokens[:position]`.

    Needs a model loaded with dtype="float64". (Parts a model always computes in float32 stay so.)
    """
    model = loaded.model
    if model.dtype != torch.float64:
        raise InvalidRequestError(
            f"margins are computed in float64, the model is in {loaded.facts.dtype}", field="dtype"
        )
    if not 1 <= position <= len(tokens):
        raise InvalidRequestError(
            f"position {position} is not between 1 and {len(tokens)}", field="position"
        )
    before = tokens[:position]
    with native_attention(model):
        logits = _logits(model, before, 0, {"use_cache": False})[-1]
    sampler = sampler_of(loaded, position, rules)
    first, second = sampler.best_two(logits, before)
    return TopTwo(first, second, needed_change(sampler, logits, before, second))


def _prompt_logprobs(
    sampler: ReferenceSampler, logits: torch.Tensor, prompt: Sequence[int]
) -> tuple[TokenLogprobs, ...]:
    """Of every token of the prompt but the first, after which nothing was known."""
    num_top = sampler.rules.num_prompt_logprobs
    if num_top is None:
        return ()
    follow = zip(logits, prompt[1:], strict=False)
    return tuple(sampler.logprobs(row, token, num_top) for row, token in follow)


def _logits(
    model: PreTrainedModel, tokens: Sequence[int], start: int, arguments: dict[str, object]
) -> torch.Tensor:
    """Logits `[len(tokens), vocab_size]` of tokens fed at positions `start`, …"""
    ids = torch.tensor([list(tokens)], device=model.device)
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    return model(input_ids=ids, position_ids=positions, **arguments).logits[0]
