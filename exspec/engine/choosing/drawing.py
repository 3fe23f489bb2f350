"""How a token is drawn: temperature, the cuts, noise, and the best sum wins. The definition.

Numbers are float64 made of single IEEE operations, and probability masses are integers, so that
their sums do not depend on the order or the number of terms: a choice is the same on any device, in
any company and whether few or all tokens are looked at. Fast ways to the same choices are in
`exspec.engine.choosing.candidates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from exspec.engine.choosing.arithmetic import exact_exp
from exspec.engine.choosing.choosing import Asked
from exspec.engine.choosing.noise import gumbels, key_of

MASS_OF_BEST = 2.0**44
"""The integer mass of a row's best token; a sum over 2^18 tokens fits into 63 bits."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Parameters of M places, each `[M, 1]` on the logits' device. See `ChoiceRules`.

    `token_ids` are the rising ids of the tokens that have scores, if those are not all.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    typical_p: torch.Tensor
    top_k: torch.Tensor
    keys: torch.Tensor
    token_ids: torch.Tensor | None = None

    def at(self, places: slice) -> Draws:
        """Some of the places."""
        return Draws(
            self.temperature[places],
            self.top_p[places],
            self.min_p[places],
            self.typical_p[places],
            self.top_k[places],
            self.keys[places],
            self.token_ids,
        )

    def ids_of(self, columns: torch.Tensor) -> torch.Tensor:
        """The token ids of columns of scores: noise is a token's, whatever its column."""
        return columns if self.token_ids is None else self.token_ids[columns]


def draws_of(
    asked: Sequence[Asked], scores: torch.Tensor, token_ids: torch.Tensor | None = None
) -> Draws:
    """The parameters of all places of `asked`, for scores `[M, n]` of the tokens `token_ids`."""
    numbers, integers = list[list[float]](), list[list[int]]()
    for one in asked:
        rules = one.choosing.rules
        per_row = [rules.temperature, rules.top_p, rules.min_p, rules.typical_p]
        top_k = min(rules.top_k if rules.top_k > 0 else scores.shape[1], scores.shape[1])
        for position in range(one.first_position, one.first_position + one.num_places):
            numbers.append(per_row)
            integers.append([top_k, key_of(rules.seed, position)])
    floats = torch.tensor(numbers, dtype=torch.float64).to(scores.device)
    ints = torch.tensor(integers, dtype=torch.int64).to(scores.device)
    return Draws(*floats.split(1, dim=1), *ints.split(1, dim=1), token_ids=token_ids)


def draw_from_all(scores: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Columns `[M]` drawn by scores `[M, n]` of any dtype; some of each row is > -inf.

    Looks at all of them.
    """
    ordered, columns, is_kept = cut(scores, draws)
    return best_of(noisy(ordered, columns, draws), columns, is_kept)[1]


def cut(scores: torch.Tensor, draws: Draws) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scaled scores in falling order, their columns, and which of them may be drawn.

    All `[M, n]`; the lower column, which is the lower id, comes first among equals.
    """
    scaled = scores.to(torch.float64) / draws.temperature
    ordered, columns = scaled.sort(dim=-1, descending=True, stable=True)
    kth = ordered.gather(1, draws.top_k - 1)
    exponentials = exact_exp(ordered - ordered[:, :1])
    is_kept = (ordered >= kth) & (ordered > float("-inf"))
    masses = masses_of(exponentials, is_kept)
    total = masses.sum(dim=1, keepdim=True).to(torch.float64)
    before = masses.cumsum(dim=1) - masses
    is_kept &= (draws.top_p >= 1) | (before.to(torch.float64) < draws.top_p * total)
    is_kept &= exponentials >= draws.min_p
    return ordered, columns, keep_typical(ordered, exponentials, is_kept, draws)


def masses_of(exponentials: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Probability masses as integers, relative to the best token's; 0 for tokens not kept."""
    return torch.where(is_kept, (exponentials * MASS_OF_BEST).to(torch.int64), 0)


def keep_typical(
    ordered: torch.Tensor, exponentials: torch.Tensor, is_kept: torch.Tensor, draws: Draws
) -> torch.Tensor:
    """Of the kept tokens those of typical probability, for places that ask for it.

    `ordered` falls along each row of `[M, n]`, and all kept tokens are among them.
    """
    asks = draws.typical_p[:, 0] < 1
    if not bool(asks.any()):
        return is_kept
    rows = asks.nonzero()[:, 0]
    kept = is_kept[rows].clone()
    x = torch.where(kept, ordered[rows] - ordered[rows, :1], 0.0)
    masses = masses_of(exponentials[rows], kept)
    total = masses.sum(dim=1, keepdim=True).to(torch.float64)
    products = (exponentials[rows] * -x * MASS_OF_BEST).to(torch.int64)
    # -log p is log Z - x and the entropy log Z + mean(-x): what they differ by needs no logarithm.
    mean = torch.where(kept, products, 0).sum(dim=1, keepdim=True).to(torch.float64) / total
    distances = torch.where(kept, (-x - mean).abs(), float("inf"))
    distances, order = distances.sort(dim=-1, stable=True)
    up_to = masses.gather(1, order).cumsum(dim=1).to(torch.float64)
    last = (up_to < draws.typical_p[rows] * total).sum(dim=1, keepdim=True)
    limit = distances.gather(1, last.clamp(max=distances.shape[1] - 1))
    is_typical = torch.zeros_like(kept).scatter(1, order, distances <= limit)
    result = is_kept.clone()
    result[rows] = kept & is_typical
    return result


def noisy(scaled: torch.Tensor, columns: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Scores with the noise of their tokens."""
    return scaled + gumbels(draws.keys, draws.ids_of(columns))


def best_of(
    sums: torch.Tensor, columns: torch.Tensor, is_kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest sum of each row among kept columns `[M, 1]`, and its column `[M]`, the lowest of
    equals."""
    kept = sums.masked_fill(~is_kept, float("-inf"))
    best = kept.amax(dim=1, keepdim=True)
    winners = columns.masked_fill(kept != best, torch.iinfo(torch.int64).max)
    return best, winners.amin(dim=1)
