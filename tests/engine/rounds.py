"""A minimal speculative loop over a runner: what a coordinator and two workers do, without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from exspec.core.acceptance import accept, cut_block, speculation_cap
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.model_runner import ModelRunner, RowInput

Proposer = Callable[[int, Sequence[int], int], Sequence[int]]
"""(request index, its tokens generated so far, K) -> up to K draft tokens."""


@dataclass
class Generation:
    """One generation standing in a slot."""

    request: int
    slot: int
    prompt: tuple[int, ...]
    choosing: Choosing | None = None
    new: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
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
        history = sequence.tokens[: sequence.kv]
        row = RowInput(
            sequence.slot, sequence.kv, lacking + draft, len(draft) + 1, sequence.choosing, history
        )
        rows.append(row)
    output = runner.forward(rows)
    parts = zip(active, drafts, output.choices, output.logprobs, strict=True)
    for sequence, draft, choices, logprobs in parts:
        decision = accept(draft[: len(choices) - 1], choices)
        block = cut_block(
            (*draft[: decision.num_accepted], decision.bonus_token),
            stop_token_ids=limits.stop_token_ids,
            num_remaining=limits.max_tokens - len(sequence.new),
        )
        sequence.kv = len(sequence.tokens) + min(decision.num_accepted, len(block.tokens) - 1)
        sequence.new += block.tokens
        sequence.logprobs += logprobs[: len(block.tokens)]
        sequence.block_sizes.append(len(block.tokens))
        sequence.finished = block.finish is not None
    return output


def speculate(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    propose: Proposer,
    num_drafts: int,
    limits: Limits,
    rules: Sequence[ChoiceRules | None] = (),
) -> list[Generation]:
    """All prompts as one static batch, to the end; slots are released. No `rules`: greedy."""
    sequences = [
        Generation(i, i, tuple(prompt), own and runner.open_choosing(own))
        for i, (prompt, own) in enumerate(zip_longest(prompts, rules))
    ]
    while not all(s.finished for s in sequences):
        run_round(runner, sequences, propose, num_drafts, limits)
    for sequence in sequences:
        runner.release(sequence.slot)
    return sequences
