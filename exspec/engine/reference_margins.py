"""How clear a choice is: how far the logits would have to move for another token to be chosen.

Found by trying: logits are moved in ways that favour the token, and the judge chooses again. So a
small answer is a proof (these very logits lead to that token), whatever rules are at work; a large
one says that none of the ways tried does. torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from exspec.engine.reference_sampler import ReferenceSampler

_SMALLEST, _LARGEST = 1e-14, 1e4
_NUM_HALVINGS = 14
"""Of the logarithm of the distance: the answer is right to a part in 400."""


def needed_change(
    sampler: ReferenceSampler, logits: torch.Tensor, tokens: Sequence[int], token: int
) -> float:
    """By how much two of the logits `[vocab_size]` must come nearer for `token` to be chosen.

    0 if it is chosen as they are, infinity if nothing that was tried leads to it. If the best
    token wins this is how far the token's logit lies behind it.
    """
    exact = logits.detach().to("cpu", torch.float64)
    if not sampler.rules.temperature and sampler.rules.repetition_penalty == 1:
        scores = sampler.scores(exact, tokens)
        return float(scores.max() - scores[token])
    if sampler.choose(exact, tokens) == token:
        return 0.0
    low, high = _SMALLEST, _LARGEST
    if not _leads_to(sampler, exact, tokens, token, high):
        return float("inf")
    for _ in range(_NUM_HALVINGS):
        middle = (low * high) ** 0.5
        if _leads_to(sampler, exact, tokens, token, middle):
            high = middle
        else:
            low = middle
    return high


def _leads_to(
    sampler: ReferenceSampler,
    logits: torch.Tensor,
    tokens: Sequence[int],
    token: int,
    distance: float,
) -> bool:
    """Whether some way to move each logit by at most half the distance makes it the choice."""
    rival = sampler.choose(logits, tokens)
    ways = _ways(logits, token, token if rival is None else rival)
    return any(sampler.choose(logits + way * (distance / 2), tokens) == token for way in ways)


def _ways(logits: torch.Tensor, token: int, rival: int) -> Iterator[torch.Tensor]:
    """Directions `[vocab_size]`, of -1 and 1, that may help a token against the one chosen now."""
    up = torch.ones_like(logits)
    alone = -up
    alone[token] = 1
    yield alone  # it gains on all others
    yield up.masked_fill(logits > logits[token], -1)  # those before it shrink: top-p keeps it
    for pushed in (up.masked_fill(logits <= logits[rival], -1), up.clone()):
        pushed[token] = 1
        pushed[rival] = -1
        yield pushed  # the rival falls out: of top-p, of top-k or min-p
    for way in (alone, up.masked_fill(logits > logits[token], -1)):
        yield -way  # typical-p prefers what is neither likely nor unlikely
