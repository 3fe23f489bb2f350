"""The small parts of a `World`: sequences as the driver has them, batches in flight, settings."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.scheduler.commands import Draft, Verify


@dataclass
class Generation:
    """One sequence as the driver's ledger has it."""

    prompt: tuple[int, ...]
    log: list[int]
    max_length: int
    is_live: bool = True
    is_cancelled: bool = False
    staged: tuple[int, ...] = ()


@dataclass
class Flight:
    """A batch in flight: the command and its entries."""

    command: Draft | Verify
    entries: list
    num_served: int | None = None
    """Given up: only this many entries will be served, and nobody hears of it."""


@dataclass(frozen=True)
class WorldPlan:
    """What the scheduler of a world was told."""

    policy: str
    limits: object
    rule: str

    @property
    def bounds(self) -> tuple[int, int | None]:
        """(the most the rule gives, what it always gives or None)."""
        if self.rule.isdigit():
            return int(self.rule), int(self.rule)
        if self.rule.startswith("auto"):
            return int(self.rule.partition(":")[2] or 12), None
        return 8, None
