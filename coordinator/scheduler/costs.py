"""What follows from the costs of passes: how many groups pay, patience.

Reads rows and batches, changes none. How many tokens to draft is `adaptive`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.estimates import Mean
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.passes import (
    CONTEXT_UNIT,
    PassCosts,
    draft_features,
    verify_features,
)
from coordinator.scheduler.rows import Batch, Worker
from coordinator.scheduler.state import State

FIRST_PATIENCE_SECONDS = 2.0
LEAST_PATIENCE_SECONDS = 0.05
"""What hiccups of processes and wires take; waiting less would only throw drafts away."""
MORE_GROUPS = 2
"""Groups tried beyond the fewest that hold all rows."""
GROUPS_MARGIN = 0.95
"""One more group must promise at most this share of the cycle time."""
FIRST_IN_PLAY = 2
"""Groups in play before costs are known."""
LEAST_STEPS = 0.5
"""Rounds with shorter drafts on average are taken to have none."""
GROUPS_STEADY_ROUNDS = 16
"""Rounds a number of groups is kept for."""


@dataclass(frozen=True, slots=True)
class RoundSeconds:
    """What one group's round takes, each part on its own."""

    verify: float
    draft: float
    wire: float


@dataclass(slots=True)
class RoundShape:
    """What the rounds of one target look like lately. Changed by `Costs` only."""

    tokens_per_row: Mean = field(default_factory=lambda: Mean(0.1, start=1.0))
    context_per_row: Mean = field(default_factory=lambda: Mean(0.1))
    num_steps: Mean = field(default_factory=lambda: Mean(0.1))
    """The longest draft of a round."""
    num_groups: int = 1
    num_in_play: int = 1
    num_rounds_left: int = 0
    """Rounds before the number of groups is thought over."""
    rows_thought_of: int = 0


class Costs(PassCosts):
    """Adds to what passes cost what follows for rounds: groups, patience."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state
        self._shapes: dict[int, RoundShape] = {}

    # Learning

    def note_verify(self, batch: Batch, cost: PassCost) -> None:
        """A target answered a batch."""
        orders = [order for order in batch.orders if isinstance(order, VerifyOrder)]
        self.learn(batch, verify_features(orders), cost)
        deciding = [order for order in orders if not order.is_prefill]
        if len(deciding) == len(orders):
            shape = self._shape(batch.worker)
            num_drafts = sum(order.num_draft_tokens for order in deciding)
            shape.tokens_per_row.update(1 + num_drafts / len(deciding))
            shape.context_per_row.update(sum(order.end for order in deciding) / len(deciding))
            shape.num_steps.update(max(order.num_draft_tokens for order in deciding))
            shape.num_rounds_left -= 1

    def note_draft(self, batch: Batch, num_made: Sequence[int | None], cost: PassCost) -> None:
        """A draft worker answered a batch; its model made so many tokens for each row.

        None: the row was refused or failed, and is taken to have been tried.
        """
        orders = [order for order in batch.orders if isinstance(order, DraftOrder)]
        asked = [order.num_draft_tokens for order in orders]
        made = [n if own is None else own for n, own in zip(asked, num_made, strict=True)]
        self.learn(batch, draft_features(orders, made), cost)
        if any(asked):
            self.note_usual_draft(batch.worker, asked, made, cost)

    def forget(self, worker: Worker) -> None:
        """A worker left."""
        super().forget(worker)
        self._shapes.pop(worker.join_index, None)

    # Forecasts

    def chosen_groups(self, target: Worker) -> int:
        """What `num_groups` said last."""
        return self._shape(target).num_groups

    def verify_seconds(self, target: Worker, num_rows: float) -> float:
        """A pass of so many rows, in rounds as they are lately."""
        shape = self._shape(target)
        context = num_rows * shape.context_per_row.value / CONTEXT_UNIT
        tokens = num_rows * shape.tokens_per_row.value
        return self.seconds(target, (1.0, num_rows, tokens, context))

    def patience(self, worker: Worker, orders: Sequence[DraftOrder]) -> float:
        """Seconds after which waiting for a draft costs more than a round without it.

        Twice what it should take (with what is before it in line) and one verify more, but no more
        than the rounds that all its drafts could save; a constant while too little is known.
        """
        targets = [target for target in self._state.targets.values() if self.is_known(target)]
        if not self.is_known(worker) or not targets:
            return FIRST_PATIENCE_SECONDS
        lines = [
            [order for order in batch.orders if isinstance(order, DraftOrder)]
            for batch in worker.batches.values()
        ]
        own = sum(self.seconds(worker, draft_features(line)) for line in (*lines, orders))
        verify = max(
            self.verify_seconds(target, target.num_live_rows) + self.wire_seconds(target)
            for target in targets
        )
        patience = 2 * (own + self.wire_seconds(worker)) + verify
        most = max(order.num_draft_tokens for order in orders)
        return min(patience, max(LEAST_PATIENCE_SECONDS, (1 + most) * verify)) if most else patience

    # Groups

    def num_groups(self, target: Worker, num_rows: int, limits: SchedulerLimits) -> int:
        """How many groups of a target's rows should be in play, so that a round is shortest.

        With G groups a target is never idle while G - 1 of them are drafted; but each pass has a
        fixed part. The cycle in which every row gets its round is
        max(G * verify, G * draft, verify + draft + wire).
        """
        shape = self._shape(target)
        if shape.rows_thought_of == num_rows and shape.num_rounds_left > 0:
            return shape.num_groups
        fewest = -(-num_rows // limits.batch_size)
        most = max(fewest, min(fewest + MORE_GROUPS, num_rows, limits.longest_wait + 1))
        best = min(max(fewest, shape.num_groups), most)
        least = self._cycle(target, num_rows, best)
        for number in range(fewest, most + 1):
            cycle = self._cycle(target, num_rows, number)
            if cycle is None or least is None:
                best = fewest
                break
            margin = GROUPS_MARGIN if number > best else 1.0
            if cycle < least * margin:
                best, least = number, cycle
        shape.num_groups, shape.rows_thought_of = best, num_rows
        shape.num_in_play = self._num_in_play(target, num_rows, best)
        shape.num_rounds_left = GROUPS_STEADY_ROUNDS
        return best

    def num_in_play(self, target: Worker) -> int:
        """Groups in play at once, of those `num_groups` spoke of: as many as keep the target busy.

        The rows of the others are there to choose from.
        """
        return self._shape(target).num_in_play

    def _num_in_play(self, target: Worker, num_rows: int, num_groups: int) -> int:
        """As many as keep the target busy; one, if computing at the same time slows both too much.

        Draft workers draft for the groups of all targets at once, so their load does not count.
        """
        work = self._round_seconds(target, num_rows / num_groups)
        if work is None or work.verify <= 0:
            return min(num_groups, FIRST_IN_PLAY)
        alone = work.verify + work.draft + work.wire
        number = min(num_groups, ceil(alone / work.verify))
        crowded = self._crowded(target, work)
        together = crowded.verify + crowded.draft + crowded.wire
        return number if max(crowded.verify, together / number) < alone else 1

    def cycle_seconds(self, target: Worker, work: RoundSeconds, num_groups: int) -> float:
        """Seconds in which every row of a target gets one round, given what a group's round takes.

        Draft workers are shared by all targets. In several groups the roles compute at the same
        time, which may slow both.
        """
        if num_groups == 1:
            return work.verify + work.draft + work.wire
        work = self._crowded(target, work)
        num_drafts = max(1, len(self._drafts_in_use()))
        load = work.draft * max(1.0, len(self._state.targets) / num_drafts)
        return max(
            num_groups * work.verify, num_groups * load, work.verify + work.draft + work.wire
        )

    def _crowded(self, target: Worker, work: RoundSeconds) -> RoundSeconds:
        """The same while targets and draft workers compute at the same time."""
        drafts = self._drafts_in_use()
        if not work.draft or not drafts:
            return work
        crowding = max(self.crowding(worker) for worker in drafts)
        return RoundSeconds(work.verify * self.crowding(target), work.draft * crowding, work.wire)

    def _cycle(self, target: Worker, num_rows: int, num_groups: int) -> float | None:
        """The same for rounds as they are lately; None: unknown."""
        work = self._round_seconds(target, num_rows / num_groups)
        return None if work is None else self.cycle_seconds(target, work, num_groups)

    def _round_seconds(self, target: Worker, size: float) -> RoundSeconds | None:
        """What a round of so many rows takes, as rounds are lately; None: unknown."""
        shape = self._shape(target)
        drafts = self._drafts_in_use() if shape.num_steps.value >= LEAST_STEPS else ()
        if not all(self.is_known(worker) for worker in (target, *drafts)):
            return None
        verify = self.verify_seconds(target, size)
        draft, wire = 0.0, self.wire_seconds(target)
        if drafts:
            draft = max(
                self.seconds(worker, self.usual_round_features(worker, size)) for worker in drafts
            )
            wire += max(self.wire_seconds(worker) for worker in drafts)
        return RoundSeconds(verify, draft, wire)

    # Inside

    def _drafts_in_use(self) -> list[Worker]:
        return [worker for worker in self._state.drafts.values() if worker.rows]

    def _shape(self, target: Worker) -> RoundShape:
        shape = self._shapes.get(target.join_index)
        if shape is None:
            shape = self._shapes[target.join_index] = RoundShape()
        return shape
