"""Runs batches of rows through one model over its KV memory: tokens in, greedy choices out.

Knows slots, positions and token ids. Sequence ids, rounds, acceptance and the wire live elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import (
    ContextLengthError,
    InvalidRequestError,
    ProtocolError,
)
from exspec.core.models import ModelFacts
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.heads import NOT_FINITE, CutHead, Head, OwnHead
from exspec.engine.kv.hf_adapter import PassCache, adopt, attending, cache_keyword
from exspec.engine.kv.layout import KvLayout, KvLayoutName, Placement, RowSpan
from exspec.engine.kv.padded import PaddedLayout
from exspec.engine.kv.plan import PassPlan, plan_pass
from exspec.engine.kv.slots import SlotsLayout
from exspec.engine.loaded import LoadedModel, kv_shape_of, num_embeddings_of
from exspec.engine.rows import PassOutput, RowInput, filled_up, one_by_one, pack, row_ends, split

_LAYOUTS = {KvLayoutName.SLOTS: SlotsLayout, KvLayoutName.PADDED: PaddedLayout}


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one run of the model gave, before anyone decided what of it counts."""

    placement: Placement
    plan: PassPlan
    choices: tuple[tuple[int, ...], ...]
    is_finite: bool
    align_seconds: float


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
        self._layout: KvLayout = layout_class(
            kv_shape_of(loaded.model, loaded.attention, num_slots, columns)
        )
        self._filled = [0] * num_slots
        self._unclean = set[int]()
        """Slots of a pass that is not through, or was not: what they hold is unknown."""
        self._cache_keyword = cache_keyword(self._model)
        self._num_embeddings = num_embeddings_of(self._model)
        self._agree = _as_it_is if loaded.ranks is None else loaded.ranks.agree
        """Over what decides how a pass goes on: ranks that went different ways would hang."""
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
        self.check(rows)
        if not rows:
            return PassOutput((), 0.0, 0.0, 0, 0)
        started = time.perf_counter()
        done = self._pass(rows)
        suspects = () if done.is_finite else self._not_finite(rows, done)
        for index, row in enumerate(rows):
            if index not in suspects:
                self._hold(row.slot, row.end)
        choices = list(done.choices)
        failed = set[int]()
        for index in suspects:
            choices[index], num_held = self._again(rows[index], _origin(done.placement, index))
            if not num_held:
                failed.add(index)
        return PassOutput(
            choices=tuple(choices),
            align_seconds=done.align_seconds,
            forward_seconds=time.perf_counter() - started - done.align_seconds,
            num_moved_rows=done.placement.num_moved_rows,
            num_moved_bytes=done.placement.num_moved_bytes,
            failed_rows=frozenset(failed),
        )

    def open_choosing(self, rules: ChoiceRules) -> Choosing:
        """Make a sequence's rules ready.

        Raises:
            InvalidRequestError: they name a token outside the vocabulary, leave no token at all, or
                have a grammar that cannot be served.
        """
        return Choosing(rules)

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

    def _pass(self, rows: Sequence[RowInput]) -> _Pass:
        """Place the rows and run the model. Nothing counts as held until `_hold` says so."""
        started = time.perf_counter()
        store = self._layout.store
        for row in rows:
            if row.slot in self._unclean:
                store.clear(row.slot, slice(None))
            self._filled[row.slot] = 0
            self._unclean.add(row.slot)
        placement = self._layout.place(
            [RowSpan(i, row.slot, row.start, len(row.tokens)) for i, row in enumerate(rows)]
        )
        aligned = time.perf_counter()
        plan = plan_pass(placement, store, self._query_groups)
        *chosen, is_finite = self._run(rows, plan)
        return _Pass(
            placement,
            plan,
            split(chosen, [row.num_choices for row in rows]),
            bool(is_finite) and NOT_FINITE not in chosen,
            aligned - started,
        )

    @torch.inference_mode()
    def _run(self, rows: Sequence[RowInput], plan: PassPlan) -> list[int]:
        """The model over all rows packed flat: the choices of all rows in the caller's order.

        One number more at the end: if what was written to KV is finite. The lists are filled up to
        a usual size; what fills them is neither stored nor attended to nor chosen from.
        """
        flat = pack(rows, plan.order)
        num_wanted = len(flat[2])
        ids, positions, wanted = (filled_up(part) for part in flat)
        device = self._model.device
        # Where the last layer is may not be where the first is; the host can index both.
        index_device = "cpu" if self._layout.store.shape.layer_devices else device
        cache = PassCache(self._layout.store, plan)
        with attending(cache):
            chosen = self._head.choose(
                torch.from_numpy(wanted).to(index_device),
                input_ids=torch.from_numpy(ids)[None].to(device),
                position_ids=torch.from_numpy(positions)[None].to(device),
                use_cache=True,
                **{self._cache_keyword: cache},
            )
        is_finite = self._layout.store.seems_finite(plan.write_addresses)
        return self._agree(torch.cat((chosen[:num_wanted], is_finite.to(chosen)[None]))).tolist()

    def _hold(self, slot: int, num_tokens: int) -> None:
        """The slot holds this many tokens, and only finite numbers."""
        self._filled[slot] = num_tokens
        self._unclean.discard(slot)

    def _not_finite(self, rows: Sequence[RowInput], done: _Pass) -> tuple[int, ...]:
        """Rows with a choice or a key or value that is not finite."""
        finite_here = self._layout.store.finite_tokens(done.plan.write_addresses)
        finite = self._agree(finite_here.to(torch.int64)).tolist()
        ends = row_ends(rows, done.plan.order)
        return tuple(
            index
            for index, row in enumerate(rows)
            if NOT_FINITE in done.choices[index]
            or not all(finite[ends[index] - len(row.tokens) : ends[index]])
        )

    def _again(self, row: RowInput, origin: int) -> tuple[tuple[int, ...], int]:
        """Feed a row anew, its guesses one by one, up to what is not finite.

        In one block NaN reaches the tokens before it: its attention weight there is 0, and 0 x NaN
        is NaN. A guess must not change what is chosen before it. Returns the choices and how many
        of the row's tokens are held now.
        """
        self._clear_outside(row.slot, origin, row.start)
        choices, held = list[int](), row.start
        for step in one_by_one(row):
            self._hold(row.slot, held)
            done = self._pass([step])
            if not done.is_finite and self._not_finite([step], done):
                self._clear_outside(row.slot, _origin(done.placement, 0), held)
                break
            choices += done.choices[0]
            held = step.end
        self._hold(row.slot, held)
        return tuple(choices), held - row.start

    def _clear_outside(self, slot: int, origin: int, length: int) -> None:
        """Zero all columns of a slot but those of its first `length` tokens."""
        self._layout.store.clear(slot, slice(0, origin))
        self._layout.store.clear(slot, slice(origin + length, None))

    def check(self, rows: Sequence[RowInput]) -> None:
        """Refuse a batch before its first row is touched; see `forward` for the errors."""
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


def _as_it_is(numbers: torch.Tensor) -> torch.Tensor:
    """A model in one process agrees with itself."""
    return numbers


def _origin(placement: Placement, row_index: int) -> int:
    """The column of the row's position 0."""
    placed = (row for group in placement.groups for row in group)
    return next(row.origin for row in placed if row.span.row_index == row_index)


def _check_positive(name: str, value: int) -> int:
    """The value, if it can be one."""
    if value < 1:
        raise InvalidRequestError(f"{name} must be at least 1, got {value}", field=name)
    return value
