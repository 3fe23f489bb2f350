"""Runs batches of rows through one model over its KV memory: tokens in, greedy choices out.

Knows slots, positions and token ids. Sequence ids, rounds, acceptance and the wire live elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from exspec.core.errors import (
    ContextLengthError,
    InvalidRequestError,
    ProtocolError,
    UnsupportedModelError,
)
from exspec.core.models import ModelFacts
from exspec.engine.heads import CutHead, Head, OwnHead
from exspec.engine.kv.hf_adapter import PassCache, adopt, attending, cache_keyword
from exspec.engine.kv.layout import KvLayout, KvLayoutName, RowSpan
from exspec.engine.kv.padded import PaddedLayout
from exspec.engine.kv.plan import PassPlan, plan_pass
from exspec.engine.kv.slots import SlotsLayout
from exspec.engine.kv.store import KvShape
from exspec.engine.loading import LoadedModel

_LAYOUTS = {KvLayoutName.SLOTS: SlotsLayout, KvLayoutName.PADDED: PaddedLayout}


@dataclass(frozen=True, slots=True)
class RowInput:
    """One row of a pass.

    `start` tokens of the slot are valid in KV; what lies beyond is stale and overwritten. `tokens`
    (at least one) are fed at positions `start`, …; greedy choices are wanted after each of the last
    `num_choices` of them (0: a prefill chunk, no vocabulary head).
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    num_choices: int


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a pass answers: per row its choices, and where the time went.

    `align_seconds` is what placing the rows took (moving KV in the padded layout),
    `forward_seconds` the model itself with its one copy to the host.
    """

    choices: tuple[tuple[int, ...], ...]
    align_seconds: float
    forward_seconds: float
    num_moved_rows: int
    num_moved_bytes: int


class ModelRunner:
    """Owns a model's KV memory and how far each slot is filled. Not thread-safe: one torch thread.

    The model is switched to our attention function; `exspec.engine.reference` switches it back for
    the time of a call.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        layout: KvLayoutName,
        num_slots: int,
        capacity: int | None,
        choices_among: Sequence[int] | None = None,
    ) -> None:
        """Allocate KV for `num_slots` rows of `capacity` tokens (None: the model's maximum).

        `choices_among` cuts the vocabulary head to these ids, for a draft model only (None: all).
        """
        self.facts: ModelFacts = loaded.facts
        self.num_slots = _check_positive("num_slots", num_slots)
        wanted = _check_positive("capacity", capacity or loaded.facts.max_length)
        self.capacity = min(wanted, loaded.facts.max_length)
        self._model = loaded.model
        adopt(self._model)
        self._query_groups = loaded.attention.num_heads // loaded.attention.num_kv_heads
        layout_class = _LAYOUTS[layout]
        columns = layout_class.num_columns(self.capacity)
        self._layout: KvLayout = layout_class(_kv_shape(loaded, num_slots, columns))
        self._filled = [0] * num_slots
        self._cache_keyword = cache_keyword(self._model)
        self._num_embeddings = _num_embeddings(self._model)
        self._head: Head = (
            OwnHead(self._model) if choices_among is None else CutHead(self._model, choices_among)
        )

    @property
    def kv_bytes(self) -> int:
        """Size of the KV memory."""
        return self._layout.store.bytes

    def forward(self, rows: Sequence[RowInput]) -> PassOutput:
        """Feed all rows in one pass and choose greedily (the lowest id wins a tie).

        Raises before anything is touched:
            InvalidRequestError: for a row without tokens, a token outside the vocabulary, a slot
                that does not exist, or more choices than tokens.
            ContextLengthError: if a row would outgrow its slot.
            ProtocolError: for a slot named twice, or a start beyond what the slot holds.
        """
        self._check(rows)
        if not rows:
            return PassOutput((), 0.0, 0.0, 0, 0)
        started = time.perf_counter()
        spans = [RowSpan(i, row.slot, row.start, len(row.tokens)) for i, row in enumerate(rows)]
        for row in rows:
            self._filled[row.slot] = row.start
        placement = self._layout.place(spans)
        aligned = time.perf_counter()
        plan = plan_pass(placement, self._layout.store, self._query_groups)
        chosen = self._run(rows, plan)
        for row in rows:
            self._filled[row.slot] = row.start + len(row.tokens)
        return PassOutput(
            choices=_split(chosen, [row.num_choices for row in rows]),
            align_seconds=aligned - started,
            forward_seconds=time.perf_counter() - aligned,
            num_moved_rows=placement.num_moved_rows,
            num_moved_bytes=placement.num_moved_bytes,
        )

    def release(self, slot: int) -> None:
        """Forget what the slot holds; it is free for another sequence."""
        if not 0 <= slot < self.num_slots:
            raise InvalidRequestError(f"there is no slot {slot}", field="slot")
        self._filled[slot] = 0
        self._layout.release(slot)

    def warm_up(self) -> None:
        """Run a prefill and a small block, so that the first request pays for no set-up.

        Call it before the first request: it uses slot 0 and releases it.
        """
        if self._filled[0]:
            raise ProtocolError("slot 0 is in use, the runner cannot be warmed up now")
        num_tokens = min(16, self.capacity)
        self.forward([RowInput(0, 0, (0,) * num_tokens, 1)])
        self.forward([RowInput(0, num_tokens - 1, (0,), 1)])
        self.release(0)

    @torch.inference_mode()
    def _run(self, rows: Sequence[RowInput], plan: PassPlan) -> list[int]:
        """The model over all rows packed flat; the choices of all rows in the caller's order."""
        ids, positions, wanted = _pack(rows, plan.order)
        device = self._model.device
        cache = PassCache(self._layout.store, plan)
        with attending(cache):
            chosen = self._head.choose(
                torch.from_numpy(wanted).to(device),
                input_ids=torch.from_numpy(ids)[None].to(device),
                position_ids=torch.from_numpy(positions)[None].to(device),
                use_cache=True,
                **{self._cache_keyword: cache},
            )
        return chosen.tolist()

    def _check(self, rows: Sequence[RowInput]) -> None:
        """Refuse a batch before its first row is touched."""
        slots = [row.slot for row in rows]
        if len(set(slots)) != len(slots):
            raise ProtocolError(f"a slot is named twice in one pass: {sorted(slots)}")
        for row in rows:
            self._check_row(row)

    def _check_row(self, row: RowInput) -> None:
        """Refuse a row that names what does not exist or does not fit."""
        if not 0 <= row.slot < self.num_slots:
            raise InvalidRequestError(f"there is no slot {row.slot}", field="slot")
        if not row.tokens:
            raise InvalidRequestError(f"slot {row.slot}: a row needs a token", field="tokens")
        if not 0 <= row.num_choices <= len(row.tokens):
            raise InvalidRequestError(
                f"slot {row.slot}: {row.num_choices} choices wanted after {len(row.tokens)} tokens",
                field="num_choices",
            )
        if not 0 <= row.start <= self._filled[row.slot]:
            raise ProtocolError(
                f"slot {row.slot} holds {self._filled[row.slot]} tokens, it cannot stand at "
                f"{row.start}"
            )
        if row.start + len(row.tokens) > self.capacity:
            raise ContextLengthError(
                f"slot {row.slot}: {row.start} + {len(row.tokens)} tokens exceed the slot's "
                f"capacity of {self.capacity}",
                field="tokens",
            )
        if min(row.tokens) < 0 or max(row.tokens) >= self._num_embeddings:
            raise InvalidRequestError(
                f"slot {row.slot}: a token id is outside [0, {self._num_embeddings})",
                field="tokens",
            )


def _pack(
    rows: Sequence[RowInput], order: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids `[N]`, positions `[N]`, and the flat places where choices are wanted `[M]`.

    Tokens follow the packing order, wanted places the caller's.
    """
    packed = [rows[index] for index in order]
    ids = np.concatenate([np.array(row.tokens, dtype=np.int64) for row in packed])
    positions = np.concatenate(
        [np.arange(row.start, row.start + len(row.tokens), dtype=np.int64) for row in packed]
    )
    ends = dict(zip(order, accumulate(len(row.tokens) for row in packed), strict=True))
    wanted = [
        np.arange(ends[i] - row.num_choices, ends[i], dtype=np.int64) for i, row in enumerate(rows)
    ]
    return ids, positions, np.concatenate(wanted)


def _split(chosen: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A flat list cut into rows of `counts` items."""
    ends = list(accumulate(counts, initial=0))
    return tuple(tuple(chosen[a:b]) for a, b in pairwise(ends))


def _kv_shape(loaded: LoadedModel, num_slots: int, num_columns: int) -> KvShape:
    """KV memory for this model."""
    attention = loaded.attention
    if attention.num_heads % attention.num_kv_heads:
        raise UnsupportedModelError("query heads are not a multiple of KV heads")
    return KvShape(
        num_layers=attention.num_layers,
        num_kv_heads=attention.num_kv_heads,
        key_dim=attention.key_dim,
        value_dim=attention.value_dim,
        num_slots=num_slots,
        num_columns=num_columns,
        dtype=loaded.model.dtype,
        device=loaded.model.device,
    )


def _num_embeddings(model: PreTrainedModel) -> int:
    """How many token ids the model can be fed."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings.weight, torch.Tensor)
    return embeddings.weight.shape[0]


def _check_positive(name: str, value: int) -> int:
    """The value, if it can be one."""
    if value < 1:
        raise InvalidRequestError(f"{name} must be at least 1, got {value}", field=name)
    return value
