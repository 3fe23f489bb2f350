"""What a round would bring for each K, before it begins. Arithmetic on rows and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coordinator.scheduler.acceptance import AcceptancePool
from coordinator.scheduler.costs import Costs, RoundSeconds
from coordinator.scheduler.passes import (
    CONTEXT_UNIT,
    FED_TO_TARGET,
    PROPOSED,
    usual_draft_features,
)
from coordinator.scheduler.rows import Forecast, Worker
from coordinator.scheduler.speculation import Candidate


class Outlook:
    """One round of `num_rows` rows of a target, of which the candidates may draft."""

    def __init__(
        self,
        target: Worker,
        num_rows: int,
        candidates: Sequence[Candidate],
        costs: Costs,
        pool: AcceptancePool,
    ) -> None:
        self._target = target
        self._num_rows = num_rows
        self._candidates = candidates
        self._costs = costs
        self._pool = pool
        self._levels = [pool.level(one.row) for one in candidates]
        self._kinds = Counter(zip(self._levels, [one.most for one in candidates], strict=True))
        self._num_drafting = Counter(one.draft for one in candidates)
        context = sum(one.row.length for one in candidates) / len(candidates)
        self._context = num_rows * context / CONTEXT_UNIT

    @property
    def is_known(self) -> bool:
        """Whether passes of all workers concerned can be foretold."""
        workers = (self._target, *self._num_drafting)
        return all(self._costs.is_known(worker) for worker in workers)

    def tokens(self, num_drafts: int, doubt: int = 0) -> float:
        """Expected tokens of the round; `doubt`: were every row this many levels better."""
        drafting = sum(
            count * self._pool.expected_tokens(level + doubt, min(num_drafts, most))
            for (level, most), count in self._kinds.items()
        )
        return self._num_rows - len(self._candidates) + drafting

    def cycle(self, num_drafts: int) -> float:
        """Seconds until all groups of the target had such a round, over the number of groups.

        What a draft worker has to catch up on is left out: it is paid once, not every round.
        """
        costs = self._costs
        verify = costs.seconds(self._target, self.verify_features(num_drafts))
        draft, wire = 0.0, costs.wire_seconds(self._target)
        if num_drafts:
            draft = max(
                costs.seconds(worker, self.draft_features(worker, num_drafts))
                for worker in self._num_drafting
            )
            wire += max(costs.wire_seconds(worker) for worker in self._num_drafting)
        num_groups = costs.chosen_groups(self._target)
        work = RoundSeconds(verify, draft, wire)
        return costs.cycle_seconds(self._target, work, num_groups) / num_groups

    def counts(self, num_drafts: int, tokens_per_second: float) -> tuple[int, ...]:
        """K of each candidate: not more than pays for it at the going rate.

        One token more is worth its chance of being right; if it is made at all, and by a model, it
        costs its share of both passes.
        """
        prices = {
            worker: self._prices(worker, num_drafts, tokens_per_second)
            for worker in self._num_drafting
        }
        return tuple(
            self._worthwhile(level, min(num_drafts, one.most), prices[one.draft])
            for level, one in zip(self._levels, self._candidates, strict=True)
        )

    def forecast(self, arm: tuple[int, int], counts: Sequence[int]) -> Forecast:
        """What a round with these K, one per candidate, is made of."""
        num_drafts = max(counts)
        tokens = self._num_rows + sum(map(self._pool.made.expected, counts))
        verify = (1.0, self._num_rows, tokens, self._context)
        if not num_drafts:
            return Forecast(arm, verify)
        worker = max(self._num_drafting, key=self._num_drafting.__getitem__)
        own = [
            (number, one.row.length - one.row.draft_kv_length)
            for number, one in zip(counts, self._candidates, strict=True)
            if number and one.draft is worker
        ]
        made = self._costs.made(worker)
        proposed = sum(made.expected(number) for number, _ in own)
        fed = sum(lag for _, lag in own)
        return Forecast(arm, verify, worker, (1.0, made.expected(num_drafts), proposed, fed))

    def verify_features(self, num_drafts: int) -> tuple[float, ...]:
        """One, rows, tokens fed, context."""
        drafted = sum(
            self._pool.made.expected(min(num_drafts, most)) * count
            for (_, most), count in self._kinds.items()
        )
        return (1.0, self._num_rows, self._num_rows + drafted, self._context)

    def draft_features(self, worker: Worker, num_drafts: int) -> tuple[float, ...]:
        """One, passes, tokens proposed, tokens fed: what is usual, two a row."""
        num_rows = self._num_drafting[worker]
        num_made = self._costs.made(worker).expected(num_drafts)
        return usual_draft_features(num_rows, num_made, num_made * num_rows)

    def _prices(self, draft: Worker, num_drafts: int, tokens_per_second: float) -> list[float]:
        """What the first, the second, … draft costs, in tokens."""
        verify = self._costs.marginal_seconds(self._target, FED_TO_TARGET)
        make = self._costs.marginal_seconds(draft, PROPOSED)
        verified, made = self._pool.made, self._costs.made(draft)
        return [
            tokens_per_second * (verify * verified.chance(place) + make * made.chance(place))
            for place in range(1, num_drafts + 1)
        ]

    def _worthwhile(self, level: int, most: int, prices: Sequence[float]) -> int:
        """The most drafts whose last one is worth its price."""
        while most and self._pool.chance(level, most) < prices[most - 1]:
            most -= 1
        return most
