"""Tokens that were not among the likeliest, and may win by their noise all the same.

Their noise must be above what the winner has in advance: with hashes alone nearly all are ruled
out, and the few that are left are looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exspec.engine.choosing.arithmetic import exact_exp
from exspec.engine.choosing.drawing import Draws
from exspec.engine.choosing.noise import counters, gumbels, lowest_hash_of, unfinished_hashes

_SLACK = 1e-7
"""Of a sum of float64 exponentials against one of integer masses, relative."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """About one row, each `[1, 1]`: its best scaled score, the bound of tokens that were not seen,
    and the sum of score and noise that wins without them."""

    best: torch.Tensor
    bound: torch.Tensor
    to_beat: torch.Tensor


def best_with_unseen(
    scores: torch.Tensor, draws: Draws, unseen: Unseen, winner: torch.Tensor
) -> torch.Tensor | None:
    """The choice `[1]` in a row `[1, vocab_size]` whose seen tokens `winner` `[1]` wins.

    None if it is not certain.
    """
    tokens = torch.arange(scores.shape[1], device=scores.device)
    hashes = unfinished_hashes(draws.keys, counters(tokens))
    may_win = (hashes >= lowest_hash_of(unseen.to_beat - unseen.bound))[0].nonzero()[:, 0]
    scaled = scores[:, may_win].to(torch.float64) / draws.temperature
    sums = scaled + gumbels(draws.keys, may_win)
    beats = (sums > unseen.to_beat) | ((sums == unseen.to_beat) & (may_win < winner))
    beats &= (scaled <= unseen.bound) & (scaled > float("-inf"))
    found = zip(sums[beats].tolist(), may_win[beats[0]].tolist(), strict=True)
    for _, token in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        is_kept = _is_kept(scores, token, draws, unseen.best)
        if is_kept is None:
            return None
        if is_kept:
            return torch.full_like(winner, token)
    return winner


def _is_kept(scores: torch.Tensor, token: int, draws: Draws, best: torch.Tensor) -> bool | None:
    """Whether top-p and min-p leave the token; None if that is not certain."""
    own = scores[:, token : token + 1].to(torch.float64) / draws.temperature
    if bool(exact_exp(own - best) < draws.min_p):
        return False
    if bool(draws.top_p >= 1):
        return True
    scaled = scores.to(torch.float64) / draws.temperature
    weights = (scaled - best).exp()
    share = float(draws.top_p) * float(weights.sum())
    if float(weights[scaled >= own].sum()) * (1 + _SLACK) < share * (1 - _SLACK):
        return True
    if float(weights[scaled > own].sum()) * (1 - _SLACK) > share * (1 + _SLACK):
        return False
    return None
