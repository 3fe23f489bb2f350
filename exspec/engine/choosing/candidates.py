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
from exspec.engine.choosing.challengers import SLACK, Standing, with_unseen
from exspec.engine.choosing.drawing import (
    MASS_OF_BEST,
    Draws,
    best_of,
    draw_from_all,
    keep_typical,
    masses_of,
    noisy,
)

_NUM_BLOCKS = 128
"""Blocks whose tokens are looked at: the candidates are about as many."""
_BLOCK = 32
"""Neighbouring columns of which first only the best one is looked at."""
_MOST_CANDIDATES = 256
_SMALL_VOCABULARY = 512
"""Up to here all columns are looked at."""
_CPU_CHUNK = 1 << 18
"""Numbers worked on at a time: what stays in a CPU's cache."""
_LARGE_CHUNK = 1 << 26


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Scaled scores `[M, n]` in falling order and their columns, the lower id first among equals.

    All columns with a score above `last` `[M, 1]` are there, and others that do not count.
    `about` is about the sum of exp(score - best score) over all columns, infinite if it was not
    needed; `[M, 1]`.
    """

    ordered: torch.Tensor
    columns: torch.Tensor
    last: torch.Tensor
    about: torch.Tensor

    @property
    def is_seen(self) -> torch.Tensor:
        """Which are above `last`, `[M, n]`."""
        return self.ordered > self.last


@dataclass(frozen=True, slots=True)
class _Look:
    """What the candidates alone say of each row, `[M]`.

    `is_certain`: the winner is the choice. `is_open`: it may be drawn, and so may some not seen.
    """

    standing: Standing
    is_certain: torch.Tensor
    is_open: torch.Tensor


def draw(scores: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """What `draw_from_all` gives, sooner, `[M]`; and the largest score of each row `[M]`."""
    if scores.shape[1] <= _SMALL_VOCABULARY:
        return draw_from_all(scores, draws), scores.amax(dim=1)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.to(torch.float32)
    survey = _survey(scores, draws)
    look = _look_at(_candidates_of(scores, survey, draws), draws, scores.shape[1])
    chosen = look.standing.winners
    unsure = (~look.is_certain & ~look.is_open).nonzero()[:, 0].tolist()
    rows = look.is_open.nonzero()[:, 0]
    if len(rows):
        for row, column in with_unseen(scores, rows, draws, look.standing).items():
            if column is None:
                unsure.append(row)
            else:
                chosen[row] = column
    for row in unsure:
        part = slice(row, row + 1)
        chosen[part] = draw_from_all(scores[part], draws.at(part))
    return chosen, survey.best[:, 0]


def _look_at(candidates: _Candidates, draws: Draws, num_columns: int) -> _Look:
    ordered, last = candidates.ordered, candidates.last
    exponentials = exact_exp(ordered - ordered[:, :1])
    kth = ordered.gather(1, draws.top_k.clamp(max=ordered.shape[1]) - 1)
    has_best = (draws.top_k <= ordered.shape[1]) & (kth > last)
    has_all = has_best | (last == float("-inf"))
    is_kept = candidates.is_seen & (~has_best | (ordered >= kth))
    masses = masses_of(exponentials, is_kept)
    before = (masses.cumsum(dim=1) - masses).to(torch.float64)
    seen = masses.sum(dim=1, keepdim=True).to(torch.float64)
    # Of the total with a top-k beyond the candidates only the upper bound is known.
    about = candidates.about * MASS_OF_BEST
    least = torch.where((draws.top_k < num_columns) | about.isinf(), 0.0, about * (1 - SLACK))
    lowest = torch.where(has_all, seen, torch.maximum(seen, least))
    highest = torch.where(has_all, seen, torch.maximum(seen, about * (1 + SLACK)))
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
    sums, columns = best_of(
        noisy(ordered, candidates.columns, draws), candidates.columns, may_be_kept
    )
    wins = (is_kept & may_be_kept & (candidates.columns == columns[:, None])).any(dim=1)
    wins &= is_typical_known[:, 0]
    is_open = wins & ~is_closed[:, 0] & (draws.top_k >= num_columns)[:, 0]
    standing = Standing(ordered[:, :1], last, columns, sums)
    return _Look(standing, wins & is_closed[:, 0], is_open)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Of each row: its best score, the blocks with the best ones in rising order `[M, blocks]`, a
    bound of the scores in all others, and `about` (see `_Candidates`); `[M, 1]` each."""

    best: torch.Tensor
    blocks: torch.Tensor
    bound: torch.Tensor
    about: torch.Tensor


def _survey(scores: torch.Tensor, draws: Draws) -> _Survey:
    """Reads every score from memory once."""
    needs_sum = (draws.top_p < 1) & (draws.top_k > _NUM_BLOCKS)
    inverse = (1 / draws.temperature).to(scores.dtype) if bool(needs_sum.any()) else None
    chunk = _CPU_CHUNK if scores.device.type == "cpu" else _LARGE_CHUNK
    step = max(1, chunk // scores.shape[1])
    maxima, sums = list[torch.Tensor](), list[torch.Tensor]()
    for begin in range(0, len(scores), step):
        rows = slice(begin, begin + step)
        maxima.append(_in_blocks(scores[rows]).amax(dim=2))
        if inverse is not None:
            weights = scores[rows] - maxima[-1].amax(dim=1, keepdim=True)
            weights *= inverse[rows]
            sums.append(weights.exp_().sum(dim=1, keepdim=True))
    best_of_blocks = torch.cat(maxima)
    num_blocks = min(_NUM_BLOCKS, best_of_blocks.shape[1])
    top = best_of_blocks.topk(num_blocks, dim=1)
    about = torch.cat(sums).to(torch.float64) if sums else draws.top_p
    return _Survey(
        best=top.values[:, :1],
        blocks=top.indices.sort(dim=1).values,
        bound=top.values[:, -1:],
        about=about.masked_fill(~needs_sum, torch.inf),
    )


def _in_blocks(scores: torch.Tensor) -> torch.Tensor:
    """Scores `[M, n]` as `[M, blocks, columns of a block]`, filled up with -inf."""
    missing = -scores.shape[1] % _BLOCK
    filled = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores
    return filled.unflatten(1, (-1, _BLOCK))


def _candidates_of(scores: torch.Tensor, survey: _Survey, draws: Draws) -> _Candidates:
    """All columns above the survey's bound, or a higher one if they were too many."""
    blocks, bound = survey.blocks, survey.bound
    rows = torch.arange(len(scores), device=scores.device)[:, None]
    values = _in_blocks(scores)[rows, blocks].flatten(1)  # [M, blocks * _BLOCK]
    if int((values > bound).sum(dim=1).amax()) > _MOST_CANDIDATES:
        bound = torch.maximum(bound, values.topk(_MOST_CANDIDATES, dim=1).values[:, -1:])
    found_rows, places = (values > bound).nonzero().unbind(1)
    counts = found_rows.bincount(minlength=len(scores))
    first = counts.cumsum(0) - counts
    width = max(1, int(counts.amax()))
    scaled = torch.full((len(scores), width), -torch.inf, dtype=torch.float64, device=scores.device)
    columns = torch.zeros((len(scores), width), dtype=torch.int64, device=scores.device)
    where = (found_rows, torch.arange(len(places), device=scores.device) - first[found_rows])
    scaled[where] = values[found_rows, places].to(torch.float64) / draws.temperature[found_rows, 0]
    columns[where] = blocks[found_rows, places // _BLOCK] * _BLOCK + places % _BLOCK
    ordered, order = scaled.sort(dim=1, descending=True, stable=True)
    last = bound.to(torch.float64) / draws.temperature
    return _Candidates(ordered, columns.gather(1, order), last, survey.about)
