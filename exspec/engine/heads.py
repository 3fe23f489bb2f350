"""How hidden states become logits and greedy choices: the model's own head, or some rows of it.

Cutting the head is for drafting: the target decides, so a draft may look at the likely tokens only.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.engine.packing import PackedLinear, can_pack
from exspec.engine.ranks import whole
from exspec.engine.rows import NOT_FINITE


class Head(Protocol):
    """Runs the model, and knows which tokens its logits are of."""

    def logits(self, wanted: torch.Tensor, **inputs: Any) -> torch.Tensor:  # noqa: ANN401
        """The head's own logits `[M, n]` after the flat places `wanted` `[M]`.

        `inputs` are what the model's forward takes, one flat row of tokens.
        """
        ...

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """Greedy choices `[M]` from the head's own logits; the lowest id wins a tie.

        `NOT_FINITE` where the largest logit is not a finite number.
        """
        ...

    @property
    def token_ids(self) -> torch.Tensor | None:
        """The rising ids `[n]` of the tokens it has logits for; None: all of the vocabulary."""
        ...


class OwnHead:
    """The model's own head with whatever it does to its logits, applied at wanted places only."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._can_cut = "logits_to_keep" in inspect.signature(model.forward).parameters

    def logits(self, wanted: torch.Tensor, **inputs: Any) -> torch.Tensor:  # noqa: ANN401
        """See `Head`."""
        if self._can_cut:
            return self._model(**inputs, logits_to_keep=wanted).logits[0]
        return self._model(**inputs).logits[0, wanted]

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Head`."""
        return first_largest(logits)

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `Head`."""
        return None


class CutHead:
    """Only some rows of the head: choices are among `token_ids`.

    For the time of a pass the model's head is replaced by one of those rows, so whatever the model
    does before and after its head, such as scaling or capping logits, is done.
    """

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None:
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear | PackedLinear):
            raise UnsupportedModelError(f"{type(model).__name__} has no linear head to cut")
        ids = sorted(set(token_ids))
        if not ids or ids[0] < 0 or ids[-1] >= head.out_features:
            raise InvalidRequestError(
                f"a draft vocabulary needs ids in [0, {head.out_features})", field="draft_vocab"
            )
        self._ids = torch.tensor(ids, device=model.device)
        self._own = OwnHead(model)
        self._head = head
        self._cut = _rows_of(head, ids)
        self._places = [
            (parent, name)
            for parent in model.modules()
            for name, child in parent.named_children()
            if child is head
        ]

    def logits(self, wanted: torch.Tensor, **inputs: Any) -> torch.Tensor:  # noqa: ANN401
        """See `Head`.

        Raises:
            UnsupportedModelError: the model does not use the head it names.
        """
        self._put(self._cut)
        try:
            logits = self._own.logits(wanted, **inputs)
        finally:
            self._put(self._head)
        if logits.shape[-1] != self._ids.shape[0]:
            raise UnsupportedModelError("the model computes logits by other means than its head")
        return logits.to(self._ids.device)

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Head`."""
        places = first_largest(logits)
        return torch.where(places == NOT_FINITE, places, self._ids[places])

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `Head`."""
        return self._ids

    def _put(self, head: nn.Module) -> None:
        for parent, name in self._places:
            setattr(parent, name, head)


class _LinearElsewhere(nn.Linear):
    """A layer that may be on another device than its inputs."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the parent's name
        return super().forward(input.to(self.weight.device))


_BLOCK = 128
"""Logits of which the largest is found first: many times faster than torch's argmax on a CPU."""


def first_largest(logits: torch.Tensor) -> torch.Tensor:
    """Indices `[M]` of the largest of `[M, vocab_size]`, the first of equals, or `NOT_FINITE`."""
    if not logits.shape[0]:
        return torch.empty(0, dtype=torch.long, device=logits.device)
    places = _argmax(logits)[:, None]  # NaN counts as the largest
    is_finite = logits.gather(-1, places).isfinite()
    return places.masked_fill(~is_finite, NOT_FINITE)[:, 0]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """`logits.argmax(-1)`, `[M]`, by way of the largest of each block."""
    num_rows, vocab_size = logits.shape
    if logits.device.type != "cpu" or vocab_size % _BLOCK or not logits.is_contiguous():
        return logits.argmax(dim=-1)
    blocks = logits.view(num_rows, -1, _BLOCK)
    best = blocks.amax(dim=-1).argmax(dim=-1)
    inside = blocks[torch.arange(num_rows), best].argmax(dim=-1)
    return best * _BLOCK + inside


def _rows_of(head: nn.Linear | PackedLinear, rows: Sequence[int]) -> nn.Module:
    """A head of the given rows alone."""
    weight = _rows(head.weight, rows)
    if not weight.is_floating_point():
        raise UnsupportedModelError(f"a head of {weight.dtype} cannot be cut")
    cut = _LinearElsewhere(weight.shape[1], len(rows), bias=head.bias is not None, device="meta")
    cut.weight = nn.Parameter(weight, requires_grad=False)
    if head.bias is not None:
        cut.bias = nn.Parameter(_rows(head.bias, rows), requires_grad=False)
    return PackedLinear(cut) if can_pack(weight) else cut


def _rows(weights: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some of them, from all ranks, on the device they are on."""
    all_rows = whole(weights.detach())
    return all_rows[torch.tensor(rows, device=all_rows.device)]
