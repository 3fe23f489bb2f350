"""Beginning rounds: the policy picks the rows, the rule how many tokens each drafts.

No order is built here and no event is handled here.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.scheduler.budgets import Budgets
from coordinator.scheduler.costs import Costs
from coordinator.scheduler.homes import Homes
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policy import Policy
from coordinator.scheduler.rows import Forecast, Group, Row, Worker
from coordinator.scheduler.speculation import (
    Candidate,
    RoundPlan,
    SpeculationRule,
    is_near,
    most_drafts,
)
from coordinator.scheduler.state import State

NEAR_DRAFTS = 8
"""A row that lacks more than such a round's tokens at its target is in prefill."""


class Rounds:
    """Forms groups until the policy wants to wait."""

    def __init__(
        self,
        state: State,
        homes: Homes,
        policy: Policy,
        rule: SpeculationRule,
        costs: Costs,
        limits: SchedulerLimits,
    ) -> None:
        self._state = state
        self._homes = homes
        self._policy = policy
        self._rule = rule
        self._costs = costs
        self._limits = limits
        self._budgets = Budgets(costs, limits)

    def begin(self) -> None:
        """Begin every round that may begin now."""
        for target in self._state.targets.values():
            while target.ready:
                rows = self._policy.next_group(target, self._limits, self._costs)
                if not rows:
                    break
                self._begin(target, rows)

    def _begin(self, target: Worker, rows: Sequence[Row]) -> None:
        counts = dict.fromkeys(rows, 0)
        forecast = self._plan(target, counts)
        group = Group(target, {row.sequence_id: row for row in rows}, forecast)
        self._state.begin_round(group, tuple(counts.values()))

    def _plan(self, target: Worker, counts: dict[Row, int]) -> Forecast | None:
        """Fill in K for every row; what is expected of the round, if it is a usual one."""
        open_to_rule: list[Candidate] = []
        num_deciding, is_usual = 0, True
        for row in counts:
            if not is_near(row, NEAR_DRAFTS):
                is_usual = False
                continue
            num_deciding += 1
            candidate = self._candidate(row)
            if candidate is None:
                continue
            if row.max_draft_tokens is None:
                open_to_rule.append(candidate)
            else:
                counts[row] = min(row.max_draft_tokens, candidate.most)
                is_usual = False
        plan = self._rule.plan(target, num_deciding, open_to_rule, self._costs)
        for one, number in zip(open_to_rule, plan.num_drafts, strict=True):
            counts[one.row] = number
        is_as_planned = is_usual
        for row, number in counts.items():
            if number and not self._can_join(row, number, plan):
                counts[row] = 0
                is_as_planned = False
        return plan.forecast if is_as_planned else None

    def _can_join(self, row: Row, num_drafts: int, plan: RoundPlan) -> bool:
        """Whether its draft can be part of this round; if only fed, it is from now on."""
        draft = row.draft
        if draft is not None and not plan.is_probe and self._budgets.is_fed_beside(row, draft):
            self._state.want_feed(row)
            return False
        return is_near(row, num_drafts)

    def _candidate(self, row: Row) -> Candidate | None:
        """The row with a draft worker that can serve it now."""
        if row.max_draft_tokens == 0 or most_drafts(row, None) < 1:
            return None
        draft = self._homes.find_draft(row)
        if draft is None or row.draft_batch is not None or draft.overdue:
            return None
        most = most_drafts(row, draft)
        return Candidate(row, draft, most) if most >= 1 else None
