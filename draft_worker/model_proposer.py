"""Proposals from a model: one catch-up pass, then one token per row and pass."""

from __future__ import annotations

from draft_worker.proposer import ProposalRow, Proposals
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
        failed = set[int]()
        align_seconds = forward_seconds = 0.0
        num_moved_rows = 0
        for step in range(max(1, *(row.num_draft_tokens for row in rows))):
            active = [i for i, row in enumerate(rows) if _takes_part(row, drafted[i], step)]
            if not active:
                break
            output = self._runner.forward([_row_input(rows[i], drafted[i]) for i in active])
            for place, (i, choices) in enumerate(zip(active, output.choices, strict=True)):
                drafted[i] += choices
                if not step and place in output.failed_rows:
                    failed.add(i)
            align_seconds += output.align_seconds
            forward_seconds += output.forward_seconds
            num_moved_rows += output.num_moved_rows
        return Proposals(
            tokens=tuple(tuple(tokens) for tokens in drafted),
            num_fed=tuple(max(0, len(tokens) - 1) for tokens in drafted),
            align_seconds=align_seconds,
            forward_seconds=forward_seconds,
            num_moved_rows=num_moved_rows,
            failed_rows=frozenset(failed),
        )


def _takes_part(row: ProposalRow, drafted: list[int], step: int) -> bool:
    """All rows are fed; those that got a token in every pass and want more go on."""
    return step == 0 or (row.num_draft_tokens > step and len(drafted) == step)


def _row_input(row: ProposalRow, drafted: list[int]) -> RowInput:
    if not drafted:
        num_choices = min(1, row.num_draft_tokens)
        return RowInput(row.feed.slot, row.feed.start, row.feed.tokens, num_choices)
    start = len(row.log) + len(drafted) - 1
    return RowInput(row.feed.slot, start, (drafted[-1],), num_choices=1)
