"""The head of a fused body: all of its rows, or those of a draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exspec.core.errors import InvalidRequestError
from exspec.engine.fused.body import LayerCache
from exspec.engine.fused.reading import FusedModel
from exspec.engine.heads import CutHead, Head, OwnHead, first_largest
from exspec.engine.loaded import LoadedModel
from exspec.engine.rows import NOT_FINITE


class FusedHead:
    """Runs a fused body; see `exspec.engine.heads.Head`, whose methods these are."""

    def __init__(self, fused: FusedModel, token_ids: Sequence[int] | None) -> None:
        """Choices are among `token_ids` (None: all tokens).

        Raises:
            InvalidRequestError: there is none among them, or one the head has no row for.
        """
        self._body = fused.body
        self._ids: torch.Tensor | None = None
        if token_ids is not None:
            ids, num_rows = sorted(set(token_ids)), fused.head.out_features
            if not ids or ids[0] < 0 or ids[-1] >= num_rows:
                raise InvalidRequestError(
                    f"a draft vocabulary needs ids in [0, {num_rows})", field="draft_vocab"
                )
            self._ids = torch.tensor(ids)
        self._head = fused.rows_of_head(self._ids)

    def logits(
        self,
        wanted: torch.Tensor,
        *,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: LayerCache,
        **_others: object,
    ) -> torch.Tensor:
        """Logits `[M, n]` after the flat places `wanted` `[M]` of `[1, N]` tokens."""
        hidden = self._body.hidden(input_ids[0], position_ids[0], cache)
        return self._head(self._body.normed(hidden[wanted]))

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """Greedy choices `[M]`."""
        places = first_largest(logits)
        if self._ids is None:
            return places
        return torch.where(places == NOT_FINITE, places, self._ids[places])

    @property
    def token_ids(self) -> torch.Tensor | None:
        """The rising ids of its logits; None: all tokens."""
        return self._ids


def head_of(loaded: LoadedModel, token_ids: Sequence[int] | None) -> Head:
    """What runs the model: fused or by its modules, with all of its head or these rows of it.

    Raises:
        InvalidRequestError: see `FusedHead`.
    """
    if loaded.fused is not None:
        return FusedHead(loaded.fused, token_ids)
    return OwnHead(loaded.model) if token_ids is None else CutHead(loaded.model, token_ids)
