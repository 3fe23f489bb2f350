"""How many tokens a row drafts in its next round. Arithmetic on one row; no choice of rows.

A `SpeculationRule` says how many are wanted; everything that bounds the number (the request, the
tokens still allowed, the draft model's context) is the same for every rule and lives here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.scheduler.rows import Row, Worker
from exspec.core.acceptance import speculation_cap


class SpeculationRule(Protocol):
    """Says how many draft tokens pay for a row whose request leaves it to the cluster."""

    def num_wanted(self, row: Row) -> int:
        """0 or more; a function of what the row remembers, asked whenever it is planned."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSpeculation:
    """The same number for every row and round."""

    num_tokens: int

    def num_wanted(self, row: Row) -> int:  # noqa: ARG002
        """The fixed number."""
        return self.num_tokens


def num_useful_drafts(row: Row, rule: SpeculationRule) -> int:
    """K for this row now, whoever drafts: what is wanted, cut to what may still be committed.

    A request's own number is taken as given, also above the cluster's.
    """
    wanted = row.max_draft_tokens
    if wanted is None:
        wanted = rule.num_wanted(row)
    return speculation_cap(wanted, row.max_length - row.length)


def can_draft(worker: Worker, row: Row) -> bool:
    """Whether a draft worker's context has room for this row's log and one token more."""
    return row.length < worker.max_length


def num_drafts_from(worker: Worker, row: Row, num_useful: int) -> int:
    """K for this row from this draft worker, whose context bounds it too."""
    return min(num_useful, worker.max_length - row.length)


def is_near(row: Row, num_drafts: int) -> bool:
    """Whether the target lacks so little of the log that a draft can be verified with it.

    What it lacks then weighs no more than a round's own tokens; longer logs are prefill.
    """
    return row.length - row.target_kv_length <= 1 + num_drafts
