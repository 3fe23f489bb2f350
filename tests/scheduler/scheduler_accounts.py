"""What the shadow ledger keeps of sequences and workers, and how it says that a rule is broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from coordinator.scheduler.commands import Draft, Verify
from exspec.core.ids import Role


class ViolationError(AssertionError):
    """The scheduler broke a promise; `rule` names it."""

    def __init__(self, rule: str, *facts: object) -> None:
        super().__init__(f"[{rule}] " + "; ".join(str(fact) for fact in facts))
        self.rule = rule


def require(condition: object, rule: str, *facts: object) -> None:
    if not condition:
        raise ViolationError(rule, *facts)


class Wait(Enum):
    """Whether a row waits for the draft batch it is in."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    """Its target, which it was sent nothing from yet, may have changed."""


@dataclass
class Place:
    """What one worker was told of one sequence."""

    epoch: int
    round_index: int
    kv_length: int = 0
    must_restart: bool = False
    left_pad: int = 0

    @property
    def num_held(self) -> int:
        """Tokens that count."""
        return 0 if self.must_restart else self.kv_length


@dataclass
class Drafting:
    """The draft batch in flight with a row."""

    worker_id: str
    batch_id: int
    wait: Wait = Wait.YES


@dataclass
class Account:
    """One sequence."""

    length: int
    max_length: int
    own_drafts: int | None
    is_live: bool = True
    verifying: str | None = None
    """The target that has its verify."""
    drafting: Drafting | None = None
    staged: tuple[int, int] | None = None
    """(length it was drafted at, number of tokens)."""
    is_sure: bool = True
    """Whether nothing that the shadow cannot see may have happened to it in this round."""
    num_planned: int | None = 0
    """Tokens asked of a draft worker in this round; None: the order was never seen."""
    ready_since: int | None = None
    """The moment of its last reply, at the target it is still on."""
    begun: int | None = None
    """The moment of the first order of its round."""
    touched: int = 0
    """The last moment at which something happened to it."""


@dataclass
class Member:
    """One worker. `holds` has a place from the first order to the release."""

    role: Role
    num_slots: int
    max_length: int
    is_open: bool = True
    """False for one that drains or refused a row."""
    holds: dict[str, Place] = field(default_factory=dict)
    flights: dict[int, Draft | Verify] = field(default_factory=dict)
    overdue: set[int] = field(default_factory=set)
