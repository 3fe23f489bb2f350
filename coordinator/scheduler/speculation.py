"""How many tokens each row of a round drafts: the rules that need no measurement, and the bounds.

A `SpeculationRule` says how many are wanted; everything that bounds the number (the request, the
tokens still allowed, the draft model's context) is the same for every rule and lives here too.
The rule that learns is `adaptive`; `rules` reads rules from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.scheduler.costs import Costs
from coordinator.scheduler.events import PassCost, VerifyOutcome
from coordinator.scheduler.rows import Batch, Forecast, Row, Worker
from exspec.core.acceptance import speculation_cap


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that may draft up to `most` tokens (at least one) in the round that begins."""

    row: Row
    draft: Worker
    most: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """K per candidate, in their order, and what is expected of it.

    `is_probe`: its few drafts are worth what feeding the draft worker for them takes.
    """

    num_drafts: tuple[int, ...]
    forecast: Forecast | None = None
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Speedup:
    """Tokens per second with speculation over plain decoding; 0: not known yet."""

    predicted: float = 0.0
    measured: float = 0.0


class SpeculationRule(Protocol):
    """Says how many draft tokens pay for rows whose requests leave it to the cluster."""

    @property
    def text(self) -> str:
        """The setting it stands for; `rules.speculation_rule` reads it."""
        ...

    @property
    def speedup(self) -> Speedup:
        """What it knows of what it brings."""
        ...

    def plan(
        self, target: Worker, num_rows: int, candidates: Sequence[Candidate], costs: Costs
    ) -> RoundPlan:
        """K for each candidate of a round of `num_rows` rows; at most what it may draft."""
        ...

    def learn(self, batch: Batch, outcomes: Sequence[VerifyOutcome], cost: PassCost | None) -> None:
        """A verify was answered; its rows are as they were when it was sent."""
        ...

    def forget(self, target: Worker) -> None:
        """A target left; it never comes back as the same worker."""
        ...


class SetSpeculation:
    """What rules share that follow a setting and nothing else."""

    __slots__ = ()

    @property
    def speedup(self) -> Speedup:
        """Nothing is measured."""
        return Speedup()

    def learn(self, batch: Batch, outcomes: Sequence[VerifyOutcome], cost: PassCost | None) -> None:
        """Nothing to learn."""

    def forget(self, target: Worker) -> None:
        """Nothing to forget."""


@dataclass(frozen=True, slots=True)
class FixedSpeculation(SetSpeculation):
    """The same number for every row and round."""

    num_tokens: int

    @property
    def text(self) -> str:
        """The number."""
        return str(self.num_tokens)

    def plan(
        self,
        target: Worker,  # noqa: ARG002
        num_rows: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
        costs: Costs,  # noqa: ARG002
    ) -> RoundPlan:
        """The fixed number."""
        return RoundPlan(tuple(min(self.num_tokens, one.most) for one in candidates))


@dataclass(frozen=True, slots=True)
class TableSpeculation(SetSpeculation):
    """A number by rows in the round, as vLLM's `num_speculative_tokens_per_batch_size`.

    `ranges`: (from rows, to rows, K), both ends included, rising without overlap; 0 outside them.
    """

    ranges: tuple[tuple[int, int, int], ...]

    @property
    def text(self) -> str:
        """The table as JSON."""
        return "[" + ",".join(f"[{low},{high},{number}]" for low, high, number in self.ranges) + "]"

    def plan(
        self,
        target: Worker,  # noqa: ARG002
        num_rows: int,
        candidates: Sequence[Candidate],
        costs: Costs,  # noqa: ARG002
    ) -> RoundPlan:
        """The number of the range that `num_rows` is in."""
        number = next((k for low, high, k in self.ranges if low <= num_rows <= high), 0)
        return RoundPlan(tuple(min(number, one.most) for one in candidates))


def most_drafts(row: Row, worker: Worker | None) -> int:
    """What bounds K for a row now: the tokens it may still commit, its draft worker's context."""
    most = speculation_cap(row.max_length, row.max_length - row.length)
    return most if worker is None else min(most, worker.max_length - row.length)


def can_draft(worker: Worker, row: Row) -> bool:
    """Whether a draft worker's context has room for this row's log and one token more."""
    return row.length < worker.max_length


def is_near(row: Row, num_drafts: int) -> bool:
    """Whether the target lacks so little of the log that a draft can be verified with it.

    What it lacks then weighs no more than a round's own tokens; longer logs are prefill.
    """
    return row.length - row.target_kv_length <= 1 + num_drafts
