"""Arithmetic of the padded layout: left pads, the shared width, who moves and how far.

Rows of a batch that accept different numbers of tokens end at different columns; a rectangular
cache needs them to end at the same one (paper, section 3: "unpad, append, repad"). Two
invariants, in lengths and never in token values:

    I1  rectangular alignment   left_pad[i] + length[i] == width       for every row i
    I2  position contiguity     the token in column c of row i has position c - left_pad[i]

Nothing moves in two cases: one row, or all rows ending at one column already (equal acceptance,
whatever their pads). Only this arithmetic lives here; `exspec.engine.kv.padded` executes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowShape:
    """One row of a rectangular cache: `left_pad` empty columns, then `length` of content."""

    left_pad: int
    length: int

    @property
    def end(self) -> int:
        """The column after the row's last one."""
        return self.left_pad + self.length


@dataclass(frozen=True, slots=True)
class AlignmentPlan:
    """Where every row stands after realignment.

    `shifts[i]` is how many columns row i moves to the right (negative: to the left); in the
    paper's terms δ_i = L' - L - a_i for a row that appended a_i tokens to a block of width L.
    """

    width: int
    left_pads: tuple[int, ...]
    shifts: tuple[int, ...]

    @property
    def is_noop(self) -> bool:
        """Whether no row moves."""
        return not any(self.shifts)

    @property
    def num_moved_rows(self) -> int:
        """How many rows are copied."""
        return sum(1 for shift in self.shifts if shift)


def plan_alignment(rows: Sequence[RowShape]) -> AlignmentPlan:
    """Make all rows end at one column, moving nothing when they already do.

    When something must move, the width is the longest content: padding shared by all rows is
    dropped, so it cannot pile up over rounds.

    Raises:
        ValueError: for no rows, or a negative pad or length.
    """
    if not rows:
        raise ValueError("an alignment needs at least one row")
    for index, row in enumerate(rows):
        if row.left_pad < 0 or row.length < 0:
            raise ValueError(f"row {index} has a negative pad or length: {row}")
    if len({row.end for row in rows}) == 1:
        pads = tuple(row.left_pad for row in rows)
        return AlignmentPlan(rows[0].end, pads, (0,) * len(rows))
    width = max(row.length for row in rows)
    pads = tuple(width - row.length for row in rows)
    shifts = tuple(pad - row.left_pad for pad, row in zip(pads, rows, strict=True))
    return AlignmentPlan(width, pads, shifts)


def aligned(rows: Sequence[RowShape], plan: AlignmentPlan) -> tuple[RowShape, ...]:
    """The rows after `plan` was carried out; I1 holds for them."""
    return tuple(RowShape(pad, row.length) for pad, row in zip(plan.left_pads, rows, strict=True))


def appended(rows: Sequence[RowShape], num_tokens: Sequence[int]) -> tuple[RowShape, ...]:
    """The rows after row i kept `num_tokens[i]` tokens of a block written at the shared width."""
    return tuple(
        RowShape(row.left_pad, row.length + count)
        for row, count in zip(rows, num_tokens, strict=True)
    )
