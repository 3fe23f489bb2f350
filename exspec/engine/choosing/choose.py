"""From logits and rules to choices: which rows need what, and all alike together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from exspec.engine.choosing.candidates import draw
from exspec.engine.choosing.choosing import Asked
from exspec.engine.choosing.drawing import draws_of
from exspec.engine.choosing.processors import apply_rules
from exspec.engine.rows import NOT_FINITE, STUCK

_LARGEST_LOGIT = 1e300
"""What float64 still holds after penalties and the lowest temperature."""


def choose(
    logits: torch.Tensor, asked: Sequence[Asked], token_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Token ids `[M]` from raw logits `[M, n]`; the places of `asked` follow each other.

    Logits are of the tokens `token_ids` `[n]`, rising; None: of the whole vocabulary.
    `NOT_FINITE` where the largest logit is not a finite number, `STUCK` where the rules leave no
    token. Each choice depends on its own row and rules only.
    """
    best = torch.empty_like(logits[:, 0])
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    with _on_one_thread(logits.device):
        for group, places in _by_need(asked):
            rows = logits if len(places) == len(logits) else logits[places]
            chosen[places], best[places] = _choose_alike(rows, group, token_ids)
    return chosen.masked_fill_(~(best.abs() < _LARGEST_LOGIT), NOT_FINITE)


def over_vocabulary(
    logits: torch.Tensor, token_ids: torch.Tensor | None, vocab_size: int
) -> torch.Tensor:
    """Logits `[M, n]` of some tokens as `[M, vocab_size]`, -inf for the others."""
    if token_ids is None:
        return logits
    full = logits.new_full((logits.shape[0], vocab_size), float("-inf"))
    full[:, token_ids] = logits
    return full


@contextmanager
def _on_one_thread(device: torch.device) -> Iterator[None]:
    """A CPU's other threads do not pay for so little work, and cost much where they have to share
    a core: each small step would wait for all of them."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def _choose_alike(
    logits: torch.Tensor, group: Sequence[Asked], token_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `[M]` or `STUCK` of rows that all draw, or all take the best; and the largest
    logits `[M]`."""
    choosing, first = group[0].choosing, group[0].first_position
    scores = logits
    if choosing.changes_logits_at(first):
        scores = over_vocabulary(
            logits.to(torch.float64, copy=True), token_ids, choosing.vocab_size
        )
        apply_rules(scores, group)
        scores = scores if token_ids is None else scores[:, token_ids]
    if choosing.rules.temperature > 0:
        columns, best = draw(scores, draws_of(group, scores, token_ids))
    else:
        columns = scores.argmax(dim=-1)
        best = scores.gather(1, columns[:, None])[:, 0]
    # Where there is no choice a column may be anything.
    chosen = columns if token_ids is None else token_ids[columns.clamp(0, len(token_ids) - 1)]
    if scores is logits:
        return chosen, best.to(logits.dtype)
    return chosen.masked_fill(best == float("-inf"), STUCK), logits.amax(dim=-1)
