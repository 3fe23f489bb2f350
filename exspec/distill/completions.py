"""Completes many token lists with one model: a batch that is always full. Torch by way of runner.

What a list is completed to depends on the list, its rules and its seed; in half precision also, in
rare ties, on its company in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from exspec.core.choosing import ChoiceRules
from exspec.engine.choosing.choosing import Choosing
from exspec.engine.model_runner import ModelRunner
from exspec.engine.rows import RowInput

_MAX_PASS_TOKENS = 2048
"""Prompt tokens fed in one pass."""
_FULL_SHARE = 0.8
"""With fewer of the slots in use, the others are closed up."""


@dataclass(frozen=True, slots=True)
class Job:
    """Go on after `tokens` (at least one) with up to `max_new_tokens`; greedily if `rules` is None.

    Generation ends right after a token of `stop_ids`, which is kept.
    """

    tokens: tuple[int, ...]
    max_new_tokens: int
    stop_ids: frozenset[int]
    rules: ChoiceRules | None = None


@dataclass(slots=True)
class _Running:
    """A job in a slot. Changed by `_Cohort` only."""

    index: int
    job: Job
    choosing: Choosing | None
    new_tokens: list[int] = field(default_factory=list)
    is_stuck: bool = False

    @property
    def is_done(self) -> bool:
        """Ended by a stop token, by its bound, or because it cannot go on."""
        tokens = self.new_tokens
        return (
            self.is_stuck
            or len(tokens) >= self.job.max_new_tokens
            or (bool(tokens) and tokens[-1] in self.job.stop_ids)
        )

    def row(self, slot: int) -> RowInput:
        """What is to be fed next: the prompt, or the token chosen last."""
        if not self.new_tokens:
            return RowInput(slot, 0, self.job.tokens, 1, self.choosing)
        start = len(self.job.tokens) + len(self.new_tokens) - 1
        return RowInput(slot, start, (self.new_tokens[-1],), 1, self.choosing)


def complete(
    runner: ModelRunner, jobs: Sequence[Job], on_tokens: Callable[[int], None]
) -> list[tuple[int, ...]]:
    """The new tokens of every job, in the order of the jobs; `on_tokens` hears how many came.

    Jobs that may last equally long are run together, in slots in the order of their lengths: the
    attention of a pass is then few calls over neighbours. A job that does not fit the runner's
    capacity, or whose numbers are not finite, gets fewer tokens than it asked for.
    """
    by_size = sorted(range(len(jobs)), key=lambda i: (jobs[i].max_new_tokens, len(jobs[i].tokens)))
    results: list[tuple[int, ...]] = [()] * len(jobs)
    for first in range(0, len(jobs), runner.num_slots):
        cohort = _Cohort(runner, on_tokens)
        for index in by_size[first : first + runner.num_slots]:
            cohort.add(index, jobs[index])
        for index, tokens in cohort.run():
            results[index] = tokens
    return results


class _Cohort:
    """Jobs that start together, one in each slot.

    Slots whose jobs are done are closed up when they are many: attention reads them for nothing.
    """

    def __init__(self, runner: ModelRunner, on_tokens: Callable[[int], None]) -> None:
        self._runner = runner
        self._on_tokens = on_tokens
        self._slots: list[_Running] = []
        """By slot. What is done stays until slots are closed up."""

    def add(self, index: int, job: Job) -> None:
        """Give the job the next slot."""
        choosing = None if job.rules is None else self._runner.open_choosing(job.rules)
        self._slots.append(_Running(index, job, choosing))

    def run(self) -> list[tuple[int, tuple[int, ...]]]:
        """Prefill all, then one token each until all are done: jobs' indices and new tokens."""
        members = list(self._slots)
        for part in self._prefills():
            self._step([self._slots[slot].row(slot) for slot in part])
        while active := [slot for slot, one in enumerate(self._slots) if not one.is_done]:
            if len(active) <= _FULL_SHARE * len(self._slots):
                self._close_up(active)
                active = list(range(len(active)))
            self._step([self._slots[slot].row(slot) for slot in active])
        for slot in range(len(self._slots)):
            self._runner.release(slot)
        return [(one.index, tuple(one.new_tokens)) for one in members]

    def _prefills(self) -> Iterator[list[int]]:
        """Slots whose prompts are fed in one pass."""
        part: list[int] = []
        num_tokens = 0
        for slot, one in enumerate(self._slots):
            size = len(one.job.tokens)
            if one.job.max_new_tokens < 1 or size > self._runner.capacity:
                one.is_stuck = True
                continue
            if part and num_tokens + size > _MAX_PASS_TOKENS:
                yield part
                part, num_tokens = [], 0
            part.append(slot)
            num_tokens += size
        if part:
            yield part

    def _step(self, rows: list[RowInput]) -> None:
        """One pass."""
        output = self._runner.forward(rows)
        for row, choices in zip(rows, output.choices, strict=True):
            one = self._slots[row.slot]
            one.new_tokens += choices
            one.is_stuck = not choices or row.end >= self._runner.capacity
        self._on_tokens(sum(len(choices) for choices in output.choices))

    def _close_up(self, active: Sequence[int]) -> None:
        """Put the active ones, in their order, into the first slots."""
        for slot, one in enumerate(self._slots):
            if one.is_done:
                self._runner.release(slot)
        for target, source in enumerate(active):
            if target != source:
                self._runner.relocate(source, target)
        self._slots = [self._slots[slot] for slot in active]
