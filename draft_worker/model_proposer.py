"""Proposals from a model: one catch-up pass, then one token per row and pass."""

from __future__ import annotations

from draft_worker.drafter import ProposalRow, Proposals
from exspec.engine.rows import PassRunner, RowInput


class ModelProposer:
    """Greedy proposals of a draft model that keeps its own KV across rounds."""

    def __init__(self, runner: PassRunner) -> None:
        self._runner = runner
        self.vocab_size = runner.facts.vocab_size
        self.num_slots = runner.num_slots
        self.capacity = runner.capacity

    def release(self, slot: int) -> None:
        """Forget a slot's KV."""
        self._runner.release(slot)

    def propose(self, rows: list[ProposalRow]) -> Proposals:
        """The first pass feeds what the rows lack; every later one feeds the token before.

        A row ends early at a token the model gives no finite numbers for.
        """
        drafted: list[list[int]] = [[] for _ in rows]
        align_seconds = forward_seconds = 0.0
        num_moved_rows = 0
        for step in range(max(row.num_draft_tokens for row in rows)):
            active = [
                i
                for i, row in enumerate(rows)
                if row.num_draft_tokens > step and len(drafted[i]) == step
            ]
            if not active:
                break
            output = self._runner.forward([_row_input(rows[i], drafted[i]) for i in active])
            for i, choices in zip(active, output.choices, strict=True):
                drafted[i] += choices
            align_seconds += output.align_seconds
            forward_seconds += output.forward_seconds
            num_moved_rows += output.num_moved_rows
        return Proposals(
            tokens=tuple(tuple(tokens) for tokens in drafted),
            num_fed=tuple(max(0, len(tokens) - 1) for tokens in drafted),
            align_seconds=align_seconds,
            forward_seconds=forward_seconds,
            num_moved_rows=num_moved_rows,
            failed_rows=frozenset(
                i for i, row in enumerate(rows) if row.num_draft_tokens and not drafted[i]
            ),
        )


def _row_input(row: ProposalRow, drafted: list[int]) -> RowInput:
    if not drafted:
        return RowInput(row.feed.slot, row.feed.start, row.feed.tokens, num_choices=1)
    start = len(row.log) + len(drafted) - 1
    return RowInput(row.feed.slot, start, (drafted[-1],), num_choices=1)
