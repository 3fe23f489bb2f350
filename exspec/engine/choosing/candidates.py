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
from exspec.engine.choosing.challengers import Unseen, best_with_unseen
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
_SMALL_VOCABULARY = 512
_BLOCK = 32
"""Tokens of which first only the best one is looked at."""
_SLACK = 1e-3
"""Of a sum of float32 exponentials over a vocabulary, relative."""
_CHUNKS = {"cpu": 1 << 18}
"""Numbers worked on at a time: what fits into a CPU's cache."""
_LARGE_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Scaled scores `[M, n]` in falling order and their tokens, the lower id first among equals.

    All other tokens of a row are not above `last` `[M, 1]`; candidates that are not above it either
    count as not seen, since some of their equals are not among them.
    """

    ordered: torch.Tensor
    tokens: torch.Tensor

    @property
    def last(self) -> torch.Tensor:
        return self.ordered[:, -1:]

    @property
    def is_seen(self) -> torch.Tensor:
        return self.ordered > self.last


@dataclass(frozen=True, slots=True)
class _Look:
    """What the candidates alone say: the winner of each row `[M]` and its sum `[M, 1]`.

    `is_certain`: it is the choice. `is_open`: it may be drawn, and so may tokens not seen.
    """

    tokens: torch.Tensor
    sums: torch.Tensor
    is_certain: torch.Tensor
    is_open: torch.Tensor


def draw(scores: torch.Tensor, draws: Draws) -> torch.Tensor:
    """What `draw_from_all` gives, sooner."""
    if scores.shape[1] <= _SMALL_VOCABULARY:
        return draw_from_all(scores, draws)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.to(torch.float32)
    candidates = _candidates_of(scores, draws)
    look = _look_at(candidates, scores, draws)
    chosen = look.tokens
    states = torch.stack((look.is_certain, look.is_open)).tolist()
    for row, (is_certain, is_open) in enumerate(zip(*states, strict=True)):
        if is_certain:
            continue
        part = slice(row, row + 1)
        found = None
        if is_open:
            unseen = Unseen(candidates.ordered[part, :1], candidates.last[part], look.sums[part])
            found = best_with_unseen(scores[part], draws.at(part), unseen, chosen[part])
        chosen[part] = draw_from_all(scores[part], draws.at(part)) if found is None else found
    return chosen


def _look_at(candidates: _Candidates, scores: torch.Tensor, draws: Draws) -> _Look:
    ordered, last = candidates.ordered, candidates.last
    exponentials = exact_exp(ordered - ordered[:, :1])
    kth = ordered.gather(1, draws.top_k.clamp(max=ordered.shape[1]) - 1)
    has_all = (last == float("-inf")) | ((draws.top_k <= ordered.shape[1]) & (kth > last))
    is_kept = candidates.is_seen & (~has_all | (ordered >= kth))
    masses = masses_of(exponentials, is_kept)
    before = (masses.cumsum(dim=1) - masses).to(torch.float64)
    seen = masses.sum(dim=1, keepdim=True).to(torch.float64)
    lowest, highest = _bounds_of_total(seen, has_all, scores, candidates, draws)
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
    is_open = wins & ~is_closed[:, 0] & (draws.top_k >= scores.shape[1])[:, 0]
    return _Look(tokens, sums, wins & is_closed[:, 0], is_open)


def _bounds_of_total(
    seen: torch.Tensor,
    has_all: torch.Tensor,
    scores: torch.Tensor,
    candidates: _Candidates,
    draws: Draws,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Between which numbers the mass is that top-p takes its share of, each `[M, 1]`."""
    rows = (~has_all & (draws.top_p < 1))[:, 0].nonzero()[:, 0]
    if not len(rows):
        return seen, seen
    is_every = len(rows) == len(scores)
    about = _sum_of_exponentials(
        scores if is_every else scores[rows],
        scores.gather(1, candidates.tokens[:, :1])[rows],
        draws.temperature[rows],
    )
    about *= MASS_OF_BEST
    # Of a top-k beyond the candidates only the upper bound is known.
    share = torch.where(draws.top_k[rows] < scores.shape[1], 0.0, 1 - _SLACK)
    lowest, highest = seen.clone(), seen.clone()
    lowest[rows] = torch.maximum(seen[rows], about * share)
    highest[rows] = torch.maximum(seen[rows], about * (1 + _SLACK))
    return lowest, highest


def _sum_of_exponentials(
    scores: torch.Tensor, best: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """About the sum of exp((score - best) / temperature), `[M, 1]`."""
    chunk = max(1, _CHUNKS.get(scores.device.type, _LARGE_CHUNK) // scores.shape[1])
    inverse = (1 / temperature).to(scores.dtype)
    found: list[torch.Tensor] = []
    for begin in range(0, len(scores), chunk):
        rows = slice(begin, begin + chunk)
        weights = scores[rows] - best[rows]
        weights *= inverse[rows]
        found.append(weights.exp_().sum(dim=1, keepdim=True))
    return torch.cat(found).to(torch.float64)


def _candidates_of(scores: torch.Tensor, draws: Draws) -> _Candidates:
    tokens = _likeliest(scores).sort(dim=-1).values
    scaled = scores.gather(1, tokens).to(torch.float64) / draws.temperature
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    return _Candidates(ordered, tokens.gather(1, order))


def _likeliest(scores: torch.Tensor) -> torch.Tensor:
    """Ids `[M, n]` of the largest scores, some or other of equals at the end."""
    if scores.device.type != "cpu":
        return scores.topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
    # The n largest are in the n blocks of largest maxima; block b holds b, b + num_blocks, ….
    num_rows, vocab_size = scores.shape
    num_blocks = vocab_size // _BLOCK
    num_in_blocks = num_blocks * _BLOCK
    if num_blocks < 2 * NUM_CANDIDATES:
        return scores.topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
    maxima = scores[:, :num_in_blocks].view(num_rows, _BLOCK, num_blocks).amax(dim=1)
    blocks = maxima.topk(NUM_CANDIDATES, dim=-1, sorted=False).indices
    steps = torch.arange(0, num_in_blocks, num_blocks)
    ids = (blocks[:, :, None] + steps).view(num_rows, -1)
    rest = torch.arange(num_in_blocks, vocab_size).expand(num_rows, -1)
    ids = torch.cat((ids, rest), dim=1)
    return ids.gather(1, scores.gather(1, ids).topk(NUM_CANDIDATES, dim=-1, sorted=False).indices)
