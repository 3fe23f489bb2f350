"""What proposes: the protocol between the drafter and a model or the n-gram table. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from exspec.core.choosing import ChoiceRules
from exspec.core.sessions import Feed

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A sequence: feed `feed.tokens`, then propose up to `num_draft_tokens` (0: feed only).

    `log` is everything the proposals continue, `feed.tokens` included: the committed log, and what
    was drafted beyond it before, if anything. `choosing` is how proposals are made; None: greedily.
    `is_greedy`: so is the target, which has no rules to follow.
    """

    feed: Feed
    log: tuple[int, ...]
    num_draft_tokens: int
    choosing: Choosing | None = None
    is_greedy: bool = True


@dataclass(frozen=True, slots=True)
class Proposals:
    """One list per row. Of a row's proposed tokens the first `num_fed` were fed, never the last.

    The last `num_looked_up` of them were looked up and not the model's; empty: none of any row.

    A row may get fewer than it wanted, or none: its rules leave no token, or there are no finite
    numbers. Of `failed_rows` not even `feed.tokens` could be fed: what was held before still is.
    """

    tokens: tuple[tuple[int, ...], ...]
    num_fed: tuple[int, ...]
    align_seconds: float = 0.0
    forward_seconds: float = 0.0
    num_moved_rows: int = 0
    failed_rows: frozenset[int] = frozenset()
    num_looked_up: tuple[int, ...] = ()

    def num_looked_up_of(self, index: int) -> int:
        """Of one row."""
        return self.num_looked_up[index] if self.num_looked_up else 0


class Proposer(Protocol):
    """Where proposals come from: a model, or the prompt itself."""

    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def vocab_size(self) -> int:
        """Ids it knows are below this."""
        ...

    def open_choosing(self, rules: ChoiceRules) -> Choosing | None:
        """Make a request's rules ready, as far as they can be followed. Never raises."""
        ...

    def propose(self, rows: list[ProposalRow]) -> Proposals: ...
    def release(self, slot: int) -> None: ...
