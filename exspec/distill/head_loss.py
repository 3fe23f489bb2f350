"""Cross-entropy behind a head that is not trained, a few places at a time. Torch.

Loss and gradient are worked out together, so that logits are never kept: over thousands of places
and tokens they would be the largest thing in a training step by far, and the slowest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

_CHUNK = 256
"""Places at a time."""


class _FrozenHeadLoss(torch.autograd.Function):
    """Sum over places of `total * logsumexp(logits) - sum_k weights * logits[tokens]`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tokens: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Also works out the gradient of `hidden`, for a loss that is this sum."""
        gradient = torch.empty_like(hidden)
        lost = weights.new_zeros(())
        for begin in range(0, len(hidden), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            share = weights[part]
            total = share.sum(dim=-1, keepdim=True)
            inputs = hidden[part].to(weight.dtype)
            logits = linear(inputs, weight, bias).to(share.dtype)
            normaliser = logits.logsumexp(dim=-1, keepdim=True)
            picked = logits.gather(-1, tokens[part])
            lost += (total * normaliser).sum() - (share * picked).sum()
            slope = logits.sub_(normaliser).exp_().mul_(total)
            slope.scatter_add_(-1, tokens[part], -share)
            gradient[part] = (slope.to(weight.dtype) @ weight).to(hidden.dtype)
        ctx.save_for_backward(gradient)
        return lost

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        upstream: torch.Tensor,
    ) -> tuple[torch.Tensor, None, None, None, None]:
        """Nothing but `hidden` is trained."""
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None, None, None


def frozen_head_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tokens: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted cross-entropy, summed over A places; only `hidden` `[A, width]` gets a gradient.

    The head has rows `weight` `[n, width]` and `bias` `[n]`. `weights` `[A, k]` say how much each
    of the rows `tokens` `[A, k]` is wanted at a place; they need not sum to 1.
    """
    loss: torch.Tensor = _FrozenHeadLoss.apply(hidden, weight, bias, tokens, weights)  # type: ignore[assignment]
    return loss
