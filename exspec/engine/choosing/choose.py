"""From logits and rules to choices: which rows need what, and all alike together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exspec.engine.choosing.candidates import draw
from exspec.engine.choosing.choosing import Asked
from exspec.engine.choosing.drawing import draws_of
from exspec.engine.choosing.processors import apply_rules
from exspec.engine.rows import NOT_FINITE, STUCK

_LARGEST_LOGIT = 1e300
"""What float64 still holds after penalties and the lowest temperature."""


def choose(logits: torch.Tensor, asked: Sequence[Asked]) -> torch.Tensor:
    """Token ids `[M]` from raw logits `[M, vocab_size]`; the places of `asked` follow each other.

    `NOT_FINITE` where the largest logit is not a finite number, `STUCK` where the rules leave no
    token. Each choice depends on its own row and rules only.
    """
    best = logits.amax(dim=-1)
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for group, places in _by_need(asked):
        rows = logits if len(places) == len(logits) else logits[places]
        chosen[places] = _choose_alike(rows, group)
    return chosen.masked_fill_(~(best.abs() < _LARGEST_LOGIT), NOT_FINITE)


def _by_need(asked: Sequence[Asked]) -> list[tuple[list[Asked], list[int]]]:
    """Rows that are treated alike, with their places."""
    groups: dict[tuple[bool, bool], tuple[list[Asked], list[int]]] = {}
    start = 0
    for one in asked:
        need = (
            one.choosing.changes_logits_at(one.first_position),
            one.choosing.rules.temperature > 0,
        )
        group, places = groups.setdefault(need, ([], []))
        group.append(one)
        places += range(start, start + one.num_places)
        start += one.num_places
    return list(groups.values())


def _choose_alike(logits: torch.Tensor, group: Sequence[Asked]) -> torch.Tensor:
    """Token ids `[M]` or `STUCK` of rows that all draw, or all take the best."""
    choosing, first = group[0].choosing, group[0].first_position
    scores = logits
    if choosing.changes_logits_at(first):
        scores = logits.to(torch.float64, copy=True)
        apply_rules(scores, group)
    if choosing.rules.temperature > 0:
        chosen = draw(scores, draws_of(group, scores.shape[1], scores.device))
    else:
        chosen = scores.argmax(dim=-1)
    if scores is logits:
        return chosen
    return chosen.masked_fill(scores.amax(dim=-1) == float("-inf"), STUCK)
