"""Runs batches of rows through one model over its KV memory: tokens in, choices out.

Knows slots, positions and token ids. Sequence ids, rounds, acceptance and the wire live elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from exspec.core.choosing import ChoiceRules, Grammar
from exspec.core.errors import InvalidRequestError, ProtocolError
from exspec.core.models import ModelFacts
from exspec.engine.choosing.choosing import Choosing, Matcher
from exspec.engine.choosing.passes import PassLogits
from exspec.engine.finished_pass import FinishedPass, origin_of, stuck_rows
from exspec.engine.fused.head import head_of
from exspec.engine.kv.hf_adapter import PassCache, adopt, attending, cache_keyword
from exspec.engine.kv.layout import KvLayout, KvLayoutName, RowSpan
from exspec.engine.kv.padded import PaddedLayout
from exspec.engine.kv.plan import PassPlan, plan_pass
from exspec.engine.kv.slots import SlotsLayout
from exspec.engine.loaded import LoadedModel, kv_shape_of, num_embeddings_of
from exspec.engine.row_checks import RowBounds
from exspec.engine.rows import (
    NOT_FINITE,
    PassOutput,
    RowAnswer,
    RowInput,
    filled_up,
    one_by_one,
    pack,
    row_ends,
    split,
)

_LAYOUTS = {KvLayoutName.SLOTS: SlotsLayout, KvLayoutName.PADDED: PaddedLayout}

OpenMatcher = Callable[[Grammar], Matcher]


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
        open_matcher: OpenMatcher | None = None,
    ) -> None:
        """Allocate KV for `num_slots` rows of `capacity` tokens (None: the model's maximum).

        `choices_among` cuts the vocabulary head to these ids, for a draft model only (None: all).
        `open_matcher` makes a grammar ready; without it rules with a grammar are refused.
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
        self._cache_keyword = "cache" if loaded.fused else cache_keyword(self._model)
        self._bounds = RowBounds(
            num_slots, self.capacity, num_embeddings_of(self._model), loaded.facts.vocab_size
        )
        self._open_matcher = open_matcher
        self._agree = None if loaded.ranks is None else loaded.ranks.agree
        """Over what decides how a pass goes on: ranks that went different ways would hang."""
        self._head = head_of(loaded, choices_among)

    @property
    def kv_bytes(self) -> int:
        """Size of the KV memory."""
        return self._layout.store.bytes

    def forward(self, rows: Sequence[RowInput]) -> PassOutput:
        """Feed all rows in one pass and choose, by a row's rules or greedily (the lowest id wins).

        Raises before anything is touched: see `RowBounds.check`.
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
        answers = done.answers()
        failed = set[int]()
        for index in suspects:
            answers[index], num_held = self._again(rows[index], origin_of(done.placement, index))
            if not num_held:
                failed.add(index)
        return PassOutput(
            choices=tuple(answer.choices for answer in answers),
            align_seconds=done.align_seconds,
            forward_seconds=time.perf_counter() - started - done.align_seconds,
            num_moved_rows=done.placement.num_moved_rows,
            num_moved_bytes=done.placement.num_moved_bytes,
            failed_rows=frozenset(failed),
            stuck_rows=stuck_rows(rows, answers) - failed,
            logprobs=tuple(answer.logprobs for answer in answers),
            scored=tuple(answer.scored for answer in answers),
            chances=tuple(answer.chances for answer in answers),
        )

    def open_choosing(self, rules: ChoiceRules) -> Choosing:
        """Make a sequence's rules ready.

        Raises:
            InvalidRequestError: they name a token outside the vocabulary, leave no token at all, or
                have a grammar that cannot be served.
        """
        matcher = None
        if rules.grammar is not None:
            if self._open_matcher is None:
                raise InvalidRequestError(
                    "structured output is not served by this worker", field="structured"
                )
            matcher = self._open_matcher(rules.grammar)
        return Choosing(rules, self.facts.vocab_size, self._model.device, matcher)

    def check(self, rows: Sequence[RowInput]) -> None:
        """Refuse a batch before its first row is touched; see `RowBounds.check` for the errors."""
        self._bounds.check(rows, self._filled)

    def release(self, slot: int) -> None:
        """Forget what the slot holds; it is free for another sequence."""
        if not 0 <= slot < self.num_slots:
            raise InvalidRequestError(f"there is no slot {slot}", field="slot")
        self._filled[slot] = 0
        self._layout.release(slot)

    def relocate(self, source: int, target: int) -> None:
        """Move what a slot holds to an empty one; the source is empty then.

        Raises:
            ProtocolError: if the target holds something, or what the source holds is unknown.
        """
        if self._filled[target] or source in self._unclean:
            raise ProtocolError(f"slot {source} cannot be moved to slot {target}")
        self._layout.store.clear(target, slice(None))  # of what an unfinished pass left, too
        self._layout.relocate(source, target, self._filled[source])
        self._hold(target, self._filled[source])
        self.release(source)

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

    def _pass(self, rows: Sequence[RowInput]) -> FinishedPass:
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
        logits, numbers = self._run(rows, plan)
        counts = [row.num_choices for row in rows] + [len(row.scored) for row in rows]
        marked = split(numbers, counts)
        scored = marked[len(rows) :]
        return FinishedPass(
            placement,
            plan,
            logits,
            marked[: len(rows)],
            tuple(
                NOT_FINITE not in choices + scores
                for choices, scores in zip(marked, scored, strict=False)
            ),
            NOT_FINITE not in numbers,
            aligned - started,
        )

    @torch.inference_mode()
    def _run(self, rows: Sequence[RowInput], plan: PassPlan) -> tuple[PassLogits, list[int]]:
        """The model over all rows packed flat: the choices of all rows in the caller's order.

        After them, 0 or a mark: for each scored token, and for what was written to KV. The lists
        are filled up to a usual size; what fills them is neither stored nor attended to nor chosen
        from.
        """
        flat = pack(rows, plan.order)
        num_wanted = len(flat[2])
        ids, positions, wanted = (filled_up(part) for part in flat)
        device = self._model.device
        # Where the last layer is may not be where the first is; the host can index both.
        index_device = "cpu" if self._layout.store.shape.layer_devices else device
        cache = PassCache(self._layout.store, plan)
        with attending(cache):
            logits = self._head.logits(
                torch.from_numpy(wanted).to(index_device),
                input_ids=torch.from_numpy(ids)[None].to(device),
                position_ids=torch.from_numpy(positions)[None].to(device),
                use_cache=True,
                **{self._cache_keyword: cache},
            )
        of_pass = PassLogits(self._head, self._bounds.vocab_size, logits[:num_wanted], rows)
        chosen = of_pass.choices()
        is_finite = self._layout.store.seems_finite(plan.write_addresses)
        numbers = torch.cat((chosen, (is_finite.to(chosen) - 1)[None]))
        return of_pass, self._agreed(numbers).tolist()

    def _agreed(self, numbers: torch.Tensor) -> torch.Tensor:
        """The numbers, marked where another rank saw what is not finite.

        Choices are this rank's own: only the first rank knows the rules.
        """
        if self._agree is None:
            return numbers
        is_finite = self._agree((numbers != NOT_FINITE).to(torch.int64))
        return numbers.masked_fill(is_finite == 0, NOT_FINITE)

    def _hold(self, slot: int, num_tokens: int) -> None:
        """The slot holds this many tokens, and only finite numbers."""
        self._filled[slot] = num_tokens
        self._unclean.discard(slot)

    def _not_finite(self, rows: Sequence[RowInput], done: FinishedPass) -> tuple[int, ...]:
        """Rows with a choice or a key or value that is not finite."""
        finite_here = self._layout.store.finite_tokens(done.plan.write_addresses)
        numbers = finite_here.to(torch.int64)
        finite = (numbers if self._agree is None else self._agree(numbers)).tolist()
        ends = row_ends(rows, done.plan.order)
        return tuple(
            index
            for index, row in enumerate(rows)
            if not done.is_row_finite[index]
            or not all(finite[ends[index] - len(row.tokens) : ends[index]])
        )

    def _again(self, row: RowInput, origin: int) -> tuple[RowAnswer, int]:
        """Feed a row anew, its guesses one by one, up to what is not finite.

        In one block NaN reaches the tokens before it: its attention weight there is 0, and 0 x NaN
        is NaN. A guess must not change what is chosen before it. Returns the answer and how many
        of the row's tokens are held now.
        """
        self._clear_outside(row.slot, origin, row.start)
        answer, held = RowAnswer(), row.start
        for index, step in enumerate(one_by_one(row)):
            self._hold(row.slot, held)
            done = self._pass([step])
            if not done.is_finite and self._not_finite([step], done):
                self._clear_outside(row.slot, origin_of(done.placement, 0), held)
                break
            is_stuck = len(answer.choices) < index
            later = done.answers()[0]
            answer = answer.followed_by(RowAnswer(scored=later.scored) if is_stuck else later)
            held = step.end
        self._hold(row.slot, held)
        return answer, held - row.start

    def _clear_outside(self, slot: int, origin: int, length: int) -> None:
        """Zero all columns of a slot but those of its first `length` tokens."""
        self._layout.store.clear(slot, slice(0, origin))
        self._layout.store.clear(slot, slice(origin + length, None))


def _check_positive(name: str, value: int) -> int:
    """The value, if it can be one."""
    if value < 1:
        raise InvalidRequestError(f"{name} must be at least 1, got {value}", field=name)
    return value
