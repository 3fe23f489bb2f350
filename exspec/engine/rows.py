"""What goes into a pass and what comes out of it: rows, and how they are packed flat.

Values and arithmetic; no model, no KV memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Protocol

import numpy as np

from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.models import ModelFacts

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

_STEPS = ((16, 1), (64, 4), (128, 8), (256, 16), (512, 32), (1024, 64))
"""Up to the first number sizes are multiples of the second."""
_LARGEST_STEP = 128

NOT_FINITE = -1
"""In place of a choice, until the host has it: the model's numbers there were not finite."""
STUCK = -2
"""In place of a choice, until the host has it: the rules left no token."""


@dataclass(frozen=True, slots=True)
class RowInput:
    """One row of a pass.

    `start` tokens of the slot are valid in KV; what lies beyond is stale and overwritten. `tokens`
    (at least one) are fed at positions `start`, …; choices are wanted after each of the last
    `num_choices` of them (0: a prefill chunk, no vocabulary head).

    `choosing` is how they are made; None: greedily, and the lowest id wins a tie. `history` holds
    the tokens before `tokens`, all of them, if `choosing.rules.needs_history`; else it may be
    empty. `scored` asks for the logprobs of tokens that are known: the k-th of them is what
    follows the k-th of `tokens`. `wants_chance` asks how likely the last choice is, for a row that
    chooses greedily, and how likely `rivals` would have been in its place.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    num_choices: int
    choosing: Choosing | None = None
    history: Sequence[int] = ()
    scored: tuple[int, ...] = ()
    wants_chance: bool = False
    rivals: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The row's length after the pass."""
        return self.start + len(self.tokens)

    @property
    def num_certain(self) -> int:
        """Tokens up to the one after which the first choice is made; the others are guesses."""
        return len(self.tokens) - max(0, self.num_choices - 1)

    def part(self, begin: int, end: int, num_choices: int) -> RowInput:
        """The row cut to its tokens from `begin` up to `end`, with other choices wanted."""
        needs_history = self.choosing is not None and self.choosing.rules.needs_history
        return RowInput(
            self.slot,
            self.start + begin,
            self.tokens[begin:end],
            num_choices,
            self.choosing,
            (*self.history, *self.tokens[:begin]) if needs_history else (),
            self.scored[begin:end],
            self.wants_chance,
            self.rivals,
        )


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a pass answers: per row its choices, and where the time went.

    `align_seconds` is what placing the rows took (moving KV in the padded layout),
    `forward_seconds` the model itself with its copies to the host.

    A row has fewer choices than it wanted when the model's numbers were not finite from some
    token on: the tokens before it are held, the others are not. `failed_rows` are those where that
    is so already before the first choice: nothing they brought is held. It also has fewer when its
    rules left no token to choose from some place on; `stuck_rows` are those where that is so
    already for the first choice: their tokens are held.

    `logprobs` has an item per row, one entry per choice, or none if its rules want none; `scored`
    has one entry per scored token of the row. `chances` has an item per row: the probabilities of
    its last greedy choice and of its rivals by the head's own logits (0 for a token the head has no
    row for); empty where that was not wanted.
    """

    choices: tuple[tuple[int, ...], ...]
    align_seconds: float
    forward_seconds: float
    num_moved_rows: int
    num_moved_bytes: int
    failed_rows: frozenset[int] = frozenset()
    stuck_rows: frozenset[int] = frozenset()
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    scored: tuple[tuple[TokenLogprobs, ...], ...] = ()
    chances: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """What one row got: its choices up to the first mark, and what is said about tokens."""

    choices: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    scored: tuple[TokenLogprobs, ...] = ()
    chances: tuple[float, ...] = ()

    def followed_by(self, later: RowAnswer) -> RowAnswer:
        """Of a row that was fed in parts. `later` gives no choices once one is missing."""
        return RowAnswer(
            self.choices + later.choices,
            self.logprobs + later.logprobs,
            self.scored + later.scored,
            later.chances,
        )


class PassRunner(Protocol):
    """What a worker needs of `exspec.engine.model_runner.ModelRunner`."""

    @property
    def facts(self) -> ModelFacts: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def open_choosing(self, rules: ChoiceRules) -> Choosing: ...
    def forward(self, rows: list[RowInput]) -> PassOutput: ...
    def release(self, slot: int) -> None: ...


def pack(
    rows: Sequence[RowInput], order: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids `[N]`, positions `[N]`, and the flat places where logits are wanted `[M]`.

    Tokens follow the packing order, wanted places the caller's: those of choices first, then those
    of scored tokens.
    """
    packed = [rows[index] for index in order]
    ids = np.concatenate([np.array(row.tokens, dtype=np.int64) for row in packed])
    positions = np.concatenate([np.arange(row.start, row.end, dtype=np.int64) for row in packed])
    ends = row_ends(rows, order)
    wanted = [
        np.arange(ends[i] - row.num_choices, ends[i], dtype=np.int64) for i, row in enumerate(rows)
    ]
    starts = [ends[i] - len(row.tokens) for i, row in enumerate(rows)]
    wanted += [
        np.arange(start, start + len(row.scored), dtype=np.int64)
        for start, row in zip(starts, rows, strict=True)
        if row.scored
    ]
    return ids, positions, np.concatenate(wanted)


def filled_up(flat: np.ndarray) -> np.ndarray:
    """The list, its last item repeated until the size is one of few (`pass_size`)."""
    num_missing = pass_size(len(flat)) - len(flat)
    return np.pad(flat, (0, num_missing), mode="edge") if num_missing else flat


def pass_size(num_items: int) -> int:
    """The next size a pass may have: few sizes, so that each is met again soon.

    Kernel libraries prepare code for every size they meet (a CPU takes milliseconds and about half
    a megabyte for it, each time) and keep it for those met lately. Small sizes are exact; the
    others grow by at most a fifth.
    """
    for bound, step in _STEPS:
        if num_items <= bound:
            return -(-num_items // step) * step
    return -(-num_items // _LARGEST_STEP) * _LARGEST_STEP


def row_ends(rows: Sequence[RowInput], order: Sequence[int]) -> dict[int, int]:
    """Where each row's tokens end in the flat list, by the caller's index."""
    return dict(zip(order, accumulate(len(rows[i].tokens) for i in order), strict=True))


def split(chosen: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A flat list cut into rows of `counts` items."""
    ends = list(accumulate(counts, initial=0))
    return tuple(tuple(chosen[a:b]) for a, b in pairwise(ends))


def up_to_mark(chosen: Sequence[int]) -> tuple[int, ...]:
    """The choices before the first `NOT_FINITE` or `STUCK`."""
    return tuple(takewhile(lambda token: token >= 0, chosen))


def one_by_one(row: RowInput) -> Iterator[RowInput]:
    """The row's certain tokens together, then each guess alone."""
    yield row.part(0, row.num_certain, min(1, row.num_choices))
    for index in range(row.num_certain, len(row.tokens)):
        yield row.part(index, index + 1, 1)
