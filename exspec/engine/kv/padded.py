"""The paper's layout: rows decoded together form a rectangle with left pads (EQSPEC, EXSPEC).

Rows of a block end at one shared column before they append; rows that kept different numbers of
tokens are realigned first ("unpad, append, repad"), in one gather per K and V and layer, and not at
all when they already end together. Pads are stored numbers. The arithmetic is
`exspec.core.alignment`; this module keeps the pads and carries plans out.
"""

from __future__ import annotations

from collections.abc import Sequence

from exspec.core.alignment import AlignmentPlan, RowShape, plan_alignment
from exspec.engine.kv.layout import MAX_BLOCK_TOKENS, PlacedRow, Placement, RowSpan
from exspec.engine.kv.spread import allocate
from exspec.engine.kv.store import ColumnMove, KvShape


class PaddedLayout:
    """Owns the left pad of every slot. `place` may move rows to the left or right.

    A slot has `MAX_BLOCK_TOKENS` columns more than its capacity: a short row aligned with a row at
    capacity appends its block beyond it.
    """

    def __init__(self, shape: KvShape) -> None:
        self.store = allocate(shape)
        self._left_pads = [0] * shape.num_slots

    @staticmethod
    def num_columns(capacity: int) -> int:
        """Columns a slot needs to hold `capacity` tokens in any company."""
        return capacity + MAX_BLOCK_TOKENS

    def place(self, rows: Sequence[RowSpan]) -> Placement:
        """Align the block rows; leave each prefill chunk where it is, if it fits there."""
        chunks = [row for row in rows if row.num_tokens > MAX_BLOCK_TOKENS]
        block = [row for row in rows if row.num_tokens <= MAX_BLOCK_TOKENS]
        rectangles = [[row] for row in chunks] + ([block] if block else [])
        plans = [self._plan(rectangle) for rectangle in rectangles]
        moves = [
            move
            for rectangle, plan in zip(rectangles, plans, strict=True)
            for move in _moves(rectangle, plan)
        ]
        num_bytes = self.store.move(moves)
        for rectangle, plan in zip(rectangles, plans, strict=True):
            for row, pad in zip(rectangle, plan.left_pads, strict=True):
                self._left_pads[row.slot] = pad
        groups = tuple(
            tuple(PlacedRow(row, self._left_pads[row.slot]) for row in rectangle)
            for rectangle in rectangles
        )
        return Placement(groups, len(moves), num_bytes)

    def relocate(self, source: int, target: int, num_tokens: int) -> None:
        """See `KvLayout`; the pad goes along."""
        pad = self._left_pads[target] = self._left_pads[source]
        self.store.copy_slot(source, target, slice(pad, pad + num_tokens))

    def release(self, slot: int) -> None:
        """Forget the slot's pad."""
        self._left_pads[slot] = 0

    def left_pad(self, slot: int) -> int:
        """The slot's pad, in columns."""
        return self._left_pads[slot]

    def _plan(self, rectangle: Sequence[RowSpan]) -> AlignmentPlan:
        """Align rows; drop the padding they share when the block would not fit otherwise."""
        shapes = [RowShape(self._left_pads[row.slot], row.start) for row in rectangle]
        plan = plan_alignment(shapes)
        num_appended = max(row.num_tokens for row in rectangle)
        if plan.width + num_appended <= self.store.shape.num_columns:
            return plan
        return _without_shared_padding(shapes)


def _moves(rectangle: Sequence[RowSpan], plan: AlignmentPlan) -> list[ColumnMove]:
    """The copies a plan asks for; a row without content has none."""
    pads = zip(rectangle, plan.left_pads, plan.shifts, strict=True)
    return [
        ColumnMove(row.slot, pad - shift, pad, row.start)
        for row, pad, shift in pads
        if shift and row.start
    ]


def _without_shared_padding(shapes: Sequence[RowShape]) -> AlignmentPlan:
    """Rows that end together, moved left by the padding they all have."""
    width = max(shape.length for shape in shapes)
    pads = tuple(width - shape.length for shape in shapes)
    shifts = tuple(pad - shape.left_pad for pad, shape in zip(pads, shapes, strict=True))
    return AlignmentPlan(width, pads, shifts)
