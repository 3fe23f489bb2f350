"""What is said about tokens: the model's own log-probabilities, before any rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exspec.core.choosing import TokenLogprobs

_LARGEST_SLICE = 1 << 22
"""Logits converted at a time: a long prompt's would need much memory."""


def logprobs_at(
    logits: torch.Tensor, tokens: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Of one token for each row of logits `[M, vocab_size]`, with the `num_top` likeliest."""
    step = max(1, _LARGEST_SLICE // max(1, logits.shape[1]))
    found: list[TokenLogprobs] = []
    for begin in range(0, len(tokens), step):
        part = slice(begin, begin + step)
        found += _slice_at(logits[part], tokens[part], num_top[part])
    return found


def _slice_at(
    logits: torch.Tensor, tokens: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """The same for a few rows."""
    logprobs = logits.to(torch.float64).log_softmax(dim=-1)
    ids = torch.tensor(tokens, device=logits.device)[:, None]
    own = logprobs.gather(1, ids)[:, 0].tolist()
    most = min(max(num_top), logits.shape[1])
    lowest = logprobs.topk(most, dim=-1).values[:, -1:].tolist() if most else [[]] * len(tokens)
    return [
        TokenLogprobs(
            token, logprob, _top(logprobs[row], bound[0], number) if number and bound else ()
        )
        for row, (token, logprob, bound, number) in enumerate(
            zip(tokens, own, lowest, num_top, strict=True)
        )
    ]


def _top(logprobs: torch.Tensor, lowest: float, number: int) -> tuple[tuple[int, float], ...]:
    """The `number` likeliest of a row `[vocab_size]`: all of them are at least `lowest`."""
    ids = (logprobs >= lowest).nonzero()[:, 0]
    pairs = zip(ids.tolist(), logprobs[ids].tolist(), strict=True)
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:number])
