"""Drawing without looking at every token: the same choices as `exspec.engine.choosing.drawing`.

The likeliest tokens of a row are sorted out and drawn from. That is the row's choice where it is
certain that no other token may be drawn, or that none of the others can win; what is not certain is
found out for the row alone, in the end over its whole vocabulary.

Sums over the vocabulary are only ever used as bounds, with slack far beyond their rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exspec.engine.choosing.arithmetic import exact_exp
from exspec.engine.choosing.challengers import Standing, with_unseen
from exspec.engine.choosing.drawing import (
    MASS_OF_BEST,
    Draws,
    best_of,
    draw_from_all,
    keep_typical,
    masses_of,
    noisy,
)

NUM_CANDIDATES = 128
_SMALL_VOCABULARY = 8192
"""Up to here all tokens are looked at."""
_BLOCK = 32
"""Neighbouring tokens of which first only the best one is looked at."""
_SLACK = 1e-3
"""Of a sum of float32 exponentials over a vocabulary, relative."""
_CPU_CHUNK = 1 << 18
"""Numbers worked on at a time: what stays in a CPU's cache."""


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Scaled scores `[M, n]` in falling order and their tokens, the lower id first among equals.

    All other tokens of a row are not above `last` `[M, 1]`; candidates that are not above it either
    count as not seen, since some of their equals are not among them.
    """

    ordered: torch.Tensor
    tokens: torch.Tensor
    about: torch.Tensor
    """About the sum of exp(score - best score) over the vocabulary, or infinite if it was not
    needed, `[M, 1]`."""

    @property
    def last(self) -> torch.Tensor:
        return self.ordered[:, -1:]

    @property
    def is_seen(self) -> torch.Tensor:
        return self.ordered > self.last


@dataclass(frozen=True, slots=True)
class _Look:
    """What the candidates alone say of each row, `[M]`.

    `is_certain`: the winner is the choice. `is_open`: it may be drawn, and so may tokens not seen.
    """

    standing: Standing
    is_certain: torch.Tensor
    is_open: torch.Tensor


def draw(scores: torch.Tensor, draws: Draws) -> torch.Tensor:
    """What `draw_from_all` gives, sooner."""
    if scores.shape[1] <= _SMALL_VOCABULARY:
        return draw_from_all(scores, draws)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.to(torch.float32)
    look = _look_at(_candidates_of(scores, draws), draws, scores.shape[1])
    chosen = look.standing.winners
    unsure = (~look.is_certain & ~look.is_open).nonzero()[:, 0].tolist()
    rows = look.is_open.nonzero()[:, 0]
    if len(rows):
        for row, token in with_unseen(scores, rows, draws, look.standing).items():
            if token is None:
                unsure.append(row)
            else:
                chosen[row] = token
    for row in unsure:
        part = slice(row, row + 1)
        chosen[part] = draw_from_all(scores[part], draws.at(part))
    return chosen


def _look_at(candidates: _Candidates, draws: Draws, vocab_size: int) -> _Look:
    ordered, last = candidates.ordered, candidates.last
    exponentials = exact_exp(ordered - ordered[:, :1])
    kth = ordered.gather(1, draws.top_k.clamp(max=ordered.shape[1]) - 1)
    has_all = (last == float("-inf")) | ((draws.top_k <= ordered.shape[1]) & (kth > last))
    is_kept = candidates.is_seen & (~has_all | (ordered >= kth))
    masses = masses_of(exponentials, is_kept)
    before = (masses.cumsum(dim=1) - masses).to(torch.float64)
    seen = masses.sum(dim=1, keepdim=True).to(torch.float64)
    # Of the total with a top-k beyond the candidates only the upper bound is known.
    about = candidates.about * MASS_OF_BEST
    least = torch.where((draws.top_k < vocab_size) | about.isinf(), 0.0, about * (1 - _SLACK))
    lowest = torch.where(has_all, seen, torch.maximum(seen, least))
    highest = torch.where(has_all, seen, torch.maximum(seen, about * (1 + _SLACK)))
    takes_all = draws.top_p >= 1
    may_be_kept = is_kept & (takes_all | (before < draws.top_p * highest))
    is_kept &= takes_all | (before < draws.top_p * lowest)
    above_min = exponentials >= draws.min_p
    is_kept, may_be_kept = is_kept & above_min, may_be_kept & above_min
    is_closed = (
        has_all
        | (~takes_all & (seen >= draws.top_p * highest))
        | (exact_exp(last - ordered[:, :1]) < draws.min_p)
    )
    is_typical_known = (is_closed & (is_kept == may_be_kept).all(dim=1, keepdim=True)) | (
        draws.typical_p >= 1
    )
    may_be_kept = keep_typical(ordered, exponentials, may_be_kept, draws)
    sums, tokens = best_of(noisy(ordered, candidates.tokens, draws), candidates.tokens, may_be_kept)
    wins = (is_kept & may_be_kept & (candidates.tokens == tokens[:, None])).any(dim=1)
    wins &= is_typical_known[:, 0]
    is_open = wins & ~is_closed[:, 0] & (draws.top_k >= vocab_size)[:, 0]
    standing = Standing(ordered[:, :1], last, tokens, sums)
    return _Look(standing, wins & is_closed[:, 0], is_open)


def _candidates_of(scores: torch.Tensor, draws: Draws) -> _Candidates:
    needs_sum = (draws.top_p < 1) & (draws.top_k > NUM_CANDIDATES)
    inverse = (1 / draws.temperature).to(scores.dtype) if bool(needs_sum.any()) else None
    if scores.device.type == "cpu":
        likeliest, about = _survey_in_cache(scores, inverse)
    else:
        likeliest = scores.topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
        about = _sum_of_exponentials(scores, scores.amax(dim=1, keepdim=True), inverse)
    tokens = likeliest.sort(dim=-1).values
    scaled = scores.gather(1, tokens).to(torch.float64) / draws.temperature
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    return _Candidates(ordered, tokens.gather(1, order), about.masked_fill(~needs_sum, torch.inf))


def _survey_in_cache(
    scores: torch.Tensor, inverse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[M, n]` of the largest scores, some or other of equals at the end, and sums of
    exponentials `[M, 1]`; every score is read from memory once.

    The n largest are in the n blocks of largest maxima, or in what no block holds.
    """
    num_rows, vocab_size = scores.shape
    num_blocks = vocab_size // _BLOCK
    in_blocks = scores[:, : num_blocks * _BLOCK]
    maxima, sums = list[torch.Tensor](), list[torch.Tensor]()
    step = max(1, _CPU_CHUNK // vocab_size)
    for begin in range(0, num_rows, step):
        rows = slice(begin, begin + step)
        maxima.append(in_blocks[rows].unflatten(1, (num_blocks, _BLOCK)).amax(dim=2))
        best = maxima[-1].amax(dim=1, keepdim=True)
        part = None if inverse is None else inverse[rows]
        sums.append(_sum_of_exponentials(scores[rows], best, part))
    blocks = torch.cat(maxima).topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
    ids = (blocks[:, :, None] * _BLOCK + torch.arange(_BLOCK)).view(num_rows, -1)
    if vocab_size > num_blocks * _BLOCK:
        rest = torch.arange(num_blocks * _BLOCK, vocab_size).expand(num_rows, -1)
        ids = torch.cat((ids, rest), dim=1)
    best_places = scores.gather(1, ids).topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
    return ids.gather(1, best_places), torch.cat(sums)


def _sum_of_exponentials(
    scores: torch.Tensor, best: torch.Tensor, inverse_temperature: torch.Tensor | None
) -> torch.Tensor:
    """About the sum of exp((score - best) / temperature), `[M, 1]` in float64."""
    if inverse_temperature is None:
        return best.to(torch.float64)
    weights = scores - best
    weights *= inverse_temperature
    return weights.exp_().sum(dim=1, keepdim=True).to(torch.float64)
