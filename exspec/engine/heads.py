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

    Scaling or capping of logits does not change which is largest, so none is done. (It changes
    what is drawn: a draft of a model that does so drafts a little worse when sampling.)
    """

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[int]) -> None:
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear | PackedLinear):
            raise UnsupportedModelError(f"{type(model).__name__} has no linear head to cut")
        ids = sorted(set(token_ids))
        if not ids or ids[0] < 0 or ids[-1] >= head.out_features:
            raise InvalidRequestError(
                f"a draft vocabulary needs ids in [0, {head.out_features})", field="choices_among"
            )
        self._body = model.base_model
        self._ids = torch.tensor(ids, device=model.device)
        self._head = _rows_of(head, self._ids)

    def logits(self, wanted: torch.Tensor, **inputs: Any) -> torch.Tensor:  # noqa: ANN401
        """See `Head`."""
        hidden = self._body(**inputs).last_hidden_state[0, wanted]
        return self._head(hidden.to(self._ids.device))

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Head`."""
        places = first_largest(logits)
        return torch.where(places == NOT_FINITE, places, self._ids[places])

    @property
    def token_ids(self) -> torch.Tensor | None:
        """See `Head`."""
        return self._ids


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


def _rows_of(head: nn.Linear | PackedLinear, rows: torch.Tensor) -> nn.Module:
    """A head of the given rows alone."""
    weight = whole(head.weight.detach())[rows]
    cut = nn.Linear(weight.shape[1], weight.shape[0], bias=head.bias is not None, device="meta")
    cut.weight = nn.Parameter(weight, requires_grad=False)
    if head.bias is not None:
        cut.bias = nn.Parameter(whole(head.bias.detach())[rows], requires_grad=False)
    return PackedLinear(cut) if can_pack(weight) else cut
