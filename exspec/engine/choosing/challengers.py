"""Tokens that were not among the likeliest, and may win by their noise all the same.

Their noise must be above what the winner has in advance: with hashes alone nearly all are ruled
out, and the few that are left are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from exspec.engine.choosing.arithmetic import exact_exp
from exspec.engine.choosing.drawing import Draws
from exspec.engine.choosing.noise import (
    counters,
    gumbels,
    lowest_hash_of,
    unfinished_hashes,
    unfinished_hashes_on_cpu,
)

SLACK = 1e-3
"""Of a sum of float32 exponentials over a vocabulary, relative."""
_ROWS_AT_ONCE = 64
"""Whose tokens are hashed together on a device other than a CPU."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of rows without the tokens that were not seen.

    The best scaled score `[M, 1]`, the bound of scores not seen `[M, 1]`, the winner among those
    seen `[M]`, and its sum of score and noise `[M, 1]`.
    """

    best: torch.Tensor
    bound: torch.Tensor
    winners: torch.Tensor
    sums: torch.Tensor


def with_unseen(
    scores: torch.Tensor, rows: torch.Tensor, draws: Draws, standing: Standing
) -> dict[int, int | None]:
    """Of `rows` of scores `[M, n]` those where a token that was not seen may win.

    With their choices; None where that is not certain.
    """
    challengers: dict[int, list[tuple[float, int]]] = {}
    for row, column, total in zip(*_challengers(scores, rows, draws, standing), strict=True):
        challengers.setdefault(row, []).append((-total, column))
    found: dict[int, int | None] = {}
    for row, ranking in challengers.items():
        part = slice(row, row + 1)
        last = (torch.inf, int(standing.winners[row]))
        ranking = sorted([*ranking, last])
        found[row] = _best_kept(scores[part], draws.at(part), standing.best[part], ranking)
    return found


def _challengers(
    scores: torch.Tensor, rows: torch.Tensor, draws: Draws, standing: Standing
) -> tuple[list[int], list[int], list[float]]:
    """Rows, columns and sums of what was not seen and beats the winner of its row."""
    rows, columns = _hashed_high(rows, draws, standing, scores.shape[1])
    scaled = scores[rows, columns].to(torch.float64) / draws.temperature[rows, 0]
    sums = scaled + gumbels(draws.keys[rows, 0], draws.ids_of(columns))
    to_beat = standing.sums[rows, 0]
    beats = (sums > to_beat) | ((sums == to_beat) & (columns < standing.winners[rows]))
    beats &= (scaled <= standing.bound[rows, 0]) & (scaled > float("-inf"))
    return rows[beats].tolist(), columns[beats].tolist(), sums[beats].tolist()


def _hashed_high(
    rows: torch.Tensor, draws: Draws, standing: Standing, num_columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns whose noise may lift even the best score not seen over the winner."""
    own = counters(draws.ids_of(torch.arange(num_columns, device=rows.device)))
    lowest = lowest_hash_of(standing.sums[rows] - standing.bound[rows])
    find = _high_one_by_one if rows.device.type == "cpu" else _high_together
    found_rows, columns = find(draws.keys[rows], own, lowest)
    return rows[found_rows], columns


def _high_one_by_one(
    keys: torch.Tensor, own: torch.Tensor, lowest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the hashes of keys `[M, 1]` and counters `[n]` are at least `lowest` `[M, 1]`."""
    bounds = zip(unfinished_hashes_on_cpu(keys, own), lowest[:, 0].tolist(), strict=True)
    found = [np.flatnonzero(hashes >= bound) for hashes, bound in bounds]
    counts = torch.tensor([len(columns) for columns in found])
    columns = torch.from_numpy(np.concatenate(found))
    return torch.arange(len(keys)).repeat_interleave(counts), columns


def _high_together(
    keys: torch.Tensor, own: torch.Tensor, lowest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on any device."""
    found = [
        (
            unfinished_hashes(keys[begin : begin + _ROWS_AT_ONCE], own)
            >= lowest[begin : begin + _ROWS_AT_ONCE]
        ).nonzero()
        + torch.tensor([begin, 0], device=keys.device)
        for begin in range(0, len(keys), _ROWS_AT_ONCE)
    ]
    rows, columns = torch.cat(found).unbind(1)
    return rows, columns


def _best_kept(
    scores: torch.Tensor,
    draws: Draws,
    best: torch.Tensor,
    ranking: Sequence[tuple[float, int]],
) -> int | None:
    """The first of the ranking that top-p and min-p leave; the last is known to be left.

    None if that is not certain.
    """
    if bool(draws.top_p >= 1) and bool(draws.min_p <= 0):
        return ranking[0][1]
    scaled = scores.to(torch.float64) / draws.temperature
    weights = (scaled - best).to(torch.float32).exp_()
    share = float(draws.top_p) * float(weights.sum())
    for _, column in ranking[:-1]:
        own = scaled[:, column]
        if bool(exact_exp(own - best) < draws.min_p):
            continue
        if bool(draws.top_p >= 1):
            return column
        if _mass(weights, scaled >= own) * (1 + SLACK) < share * (1 - SLACK):
            return column
        if not _mass(weights, scaled > own) * (1 - SLACK) > share * (1 + SLACK):
            return None
    return ranking[-1][1]


def _mass(weights: torch.Tensor, is_meant: torch.Tensor) -> float:
    return float(torch.where(is_meant, weights, 0.0).sum())
