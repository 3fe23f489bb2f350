"""A minimal speculative loop over a runner: what a coordinator and two workers do, without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exspec.core.acceptance import accept, cut_block, speculation_cap
from exspec.engine.model_runner import ModelRunner, RowInput

Proposer = Callable[[int, Sequence[int], int], Sequence[int]]
"""(request index, its tokens generated so far, K) -> up to K draft tokens."""


@dataclass
class Generation:
    """One generation standing in a slot."""

    request: int
    slot: int
    prompt: tuple[int, ...]
    new: list[int] = field(default_factory=list)
    kv: int = 0
    block_sizes: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.new)


@dataclass(frozen=True)
class Limits:
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()


def run_round(
    runner: ModelRunner,
    sequences: Sequence[Generation],
    propose: Proposer,
    num_drafts: int,
    limits: Limits,
):
    """One verify pass over unfinished sequences; commits what it decides."""
    active = [s for s in sequences if not s.finished]
    drafts, rows = [], []
    for sequence in active:
        room = limits.max_tokens - len(sequence.new)
        k = speculation_cap(num_drafts, room)
        draft = tuple(propose(sequence.request, sequence.new, k))[:k]
        lacking = sequence.tokens[sequence.kv :]
        drafts.append(draft)
        rows.append(RowInput(sequence.slot, sequence.kv, lacking + draft, len(draft) + 1))
    output = runner.forward(rows)
    for sequence, draft, choices in zip(active, drafts, output.choices, strict=True):
        decision = accept(draft, choices)
        block = cut_block(
            (*draft[: decision.num_accepted], decision.bonus_token),
            stop_token_ids=limits.stop_token_ids,
            num_remaining=limits.max_tokens - len(sequence.new),
        )
        sequence.kv = len(sequence.tokens) + min(decision.num_accepted, len(block.tokens) - 1)
        sequence.new += block.tokens
        sequence.block_sizes.append(len(block.tokens))
        sequence.finished = block.finish is not None
    return output


def speculate(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    propose: Proposer,
    num_drafts: int,
    limits: Limits,
) -> list[Generation]:
    """All prompts as one static batch, to the end; slots are released."""
    sequences = [Generation(i, i, tuple(prompt)) for i, prompt in enumerate(prompts)]
    while not all(s.finished for s in sequences):
        run_round(runner, sequences, propose, num_drafts, limits)
    for sequence in sequences:
        runner.release(sequence.slot)
    return sequences
