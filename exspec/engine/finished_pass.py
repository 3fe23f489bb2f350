"""What one run of the model gave, row by row. No model, no KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from exspec.engine.choosing.passes import PassLogits
from exspec.engine.kv.layout import Placement
from exspec.engine.kv.plan import PassPlan
from exspec.engine.rows import RowAnswer, RowInput, up_to_mark


@dataclass(frozen=True, slots=True)
class FinishedPass:
    """What one run of the model gave, before anyone decided what of it counts.

    `marked` are the choices of each row, and marks; `is_row_finite` of its choices and scores.
    """

    placement: Placement
    plan: PassPlan
    logits: PassLogits
    marked: tuple[tuple[int, ...], ...]
    is_row_finite: tuple[bool, ...]
    is_finite: bool
    align_seconds: float

    @torch.inference_mode()
    def answers(self) -> list[RowAnswer]:
        """What each row got, nothing said about those that are not finite."""
        choices = [up_to_mark(chosen) for chosen in self.marked]
        logprobs = self.logits.logprobs(choices)
        scored = self.logits.scored([not is_finite for is_finite in self.is_row_finite])
        chances = self.logits.chances()
        parts = zip(choices, logprobs, scored, chances, strict=True)
        return [RowAnswer(*of_row) for of_row in parts]


def stuck_rows(rows: Sequence[RowInput], answers: Sequence[RowAnswer]) -> frozenset[int]:
    """Rows that got no choice and wanted some."""
    return frozenset(
        index
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True))
        if row.num_choices and not answer.choices
    )


def origin_of(placement: Placement, row_index: int) -> int:
    """The column of the row's position 0."""
    placed = (row for group in placement.groups for row in group)
    return next(row.origin for row in placed if row.span.row_index == row_index)
