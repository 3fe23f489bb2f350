"""How much of a prompt is fed at a time: to a target beside decoding rows, to a draft worker.

Reads costs and rows, changes none. Who is fed within a budget is `orders`' business.
"""

from __future__ import annotations

from math import ceil

from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.passes import FED_TO_DRAFT, FED_TO_TARGET
from coordinator.scheduler.rows import Row, Worker
from exspec.core.ids import Role

MIXED_STRETCH = 3.0
"""How many times as long a pass may take for prefill that joins it."""
FIRST_BUDGET = 128
LEAST_BUDGET = 16
FED_FEATURE = {Role.TARGET: FED_TO_TARGET, Role.DRAFT: FED_TO_DRAFT}
MOST_AT_ONCE = 4
"""A draft worker is fed at most this many times a target's prefill tokens in one pass."""
MOST_VERIFIES = 2
"""Nor for longer than so many passes of the target: about what is waited for one draft token."""
MISSED_SHARE = 0.5
"""What a row's round brings less without a draft."""


class Budgets:
    """Tokens that may be fed, by what passes cost or as the limits say."""

    def __init__(self, costs: Costs, limits: SchedulerLimits) -> None:
        self._costs = costs
        self._limits = limits

    def prefill(self, target: Worker, num_deciding: int) -> int:
        """Prefill tokens that may join a pass `num_deciding` rows wait for.

        So many that the pass takes about `MIXED_STRETCH` times as long, unless the limits say it.
        """
        seconds = self._costs.verify_seconds(target, num_deciding)
        return self._tokens_in(target, (MIXED_STRETCH - 1) * seconds)

    def feed(self, draft: Worker) -> int:
        """Tokens a draft worker may be fed in the time that a usual draft takes it."""
        return self._tokens_in(draft, self._costs.usual_draft_seconds(draft))

    def is_fed_beside(self, row: Row, draft: Worker) -> bool:
        """Whether a draft worker had better catch up on a row in pieces, beside rounds without it.

        Fed at once, all rows of the draft worker wait. In pieces, the row goes without drafts for
        as many rounds, in which the passes of both roles slow one another.
        """
        lag, budget = row.draft_backlog, self.feed(draft)
        if lag <= budget:
            return False
        costs, target = self._costs, row.target
        is_set = self._limits.max_mixed_prefill_tokens is not None
        if is_set or lag > MOST_AT_ONCE * self._limits.max_prefill_tokens:
            return True
        if target is None or not (costs.is_known(draft) and costs.is_known(target)):
            return True
        num_rows = target.num_live_rows / costs.chosen_groups(target)
        verify = costs.verify_seconds(target, num_rows)
        at_once = lag * costs.marginal_seconds(draft, FED_TO_DRAFT)
        lost = MISSED_SHARE + num_rows * (costs.crowding(target) - 1)
        in_pieces = ceil(lag / budget) * verify * lost
        return at_once > MOST_VERIFIES * verify or at_once * draft.num_live_rows > in_pieces

    def _tokens_in(self, worker: Worker, seconds: float) -> int:
        """Tokens fed in that time, unless the limits say how many."""
        if self._limits.max_mixed_prefill_tokens is not None:
            return self._limits.max_mixed_prefill_tokens
        most = self._limits.max_prefill_tokens
        if not self._costs.is_known(worker):
            return min(most, FIRST_BUDGET)
        price = self._costs.marginal_seconds(worker, FED_FEATURE[worker.role])
        num_tokens = int(seconds / price) if price * most > seconds else most
        return max(min(most, LEAST_BUDGET), num_tokens)
