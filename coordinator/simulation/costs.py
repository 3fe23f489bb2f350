"""How long a modelled pass takes, as a function of what is in it. Seconds everywhere. Pure.

The forms are linear because a pass is a fixed price (weights are read once, kernels are started)
plus a price for what is in it. Coefficients of known machines are in `presets`.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.scheduler.commands import Draft, Verify
from exspec.core.alignment import AlignmentPlan


@dataclass(frozen=True, slots=True)
class VerifyCosts:
    """A target's pass: fixed + rows + tokens fed (drafts included) + tokens attended to."""

    fixed_seconds: float
    per_row_seconds: float = 0.0
    per_token_seconds: float = 0.0
    per_context_token_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """A draft batch: fixed + steps + rows in each step + log tokens fed before the first step.

    The first step is the pass that feeds the log, so K tokens take K steps; the batch takes as
    many steps as its largest K, and one where nobody drafts.
    """

    fixed_seconds: float
    per_step_seconds: float = 0.0
    per_row_step_seconds: float = 0.0
    per_token_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AlignmentCosts:
    """Realigning a padded block: fixed + tokens of the rows that move. Nothing moves: nothing."""

    fixed_seconds: float = 0.0
    per_moved_token_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WireCosts:
    """One direction between the coordinator and a worker: a constant, and up to `jitter` more."""

    seconds: float = 0.0
    jitter_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """A modelled machine."""

    verify: VerifyCosts
    draft: DraftCosts
    alignment: AlignmentCosts = AlignmentCosts()
    wire: WireCosts = WireCosts()


def verify_seconds(costs: VerifyCosts, command: Verify) -> float:
    """Time of a verify pass, realignment aside."""
    num_tokens = num_context_tokens = 0
    for order in command.orders:
        end = order.end + order.num_draft_tokens
        num_tokens += end - order.start
        num_context_tokens += end
    return (
        costs.fixed_seconds
        + costs.per_row_seconds * len(command.orders)
        + costs.per_token_seconds * num_tokens
        + costs.per_context_token_seconds * num_context_tokens
    )


def draft_seconds(costs: DraftCosts, command: Draft) -> float:
    """Time of a draft batch, catching up with the log included."""
    drafts = [order.num_draft_tokens for order in command.orders]
    num_fed = sum(order.end - order.start for order in command.orders)
    return (
        costs.fixed_seconds
        + costs.per_step_seconds * max(1, *drafts)
        + costs.per_row_step_seconds * sum(max(1, count) for count in drafts)
        + costs.per_token_seconds * num_fed
    )


def alignment_seconds(costs: AlignmentCosts, plan: AlignmentPlan | None) -> float:
    """Time to realign a padded block before a pass."""
    if plan is None or plan.is_noop:
        return 0.0
    return costs.fixed_seconds + costs.per_moved_token_seconds * num_moved_tokens(plan)


def num_moved_tokens(plan: AlignmentPlan) -> int:
    """Tokens whose keys and values are copied."""
    return sum(
        plan.width - pad for pad, shift in zip(plan.left_pads, plan.shifts, strict=True) if shift
    )
