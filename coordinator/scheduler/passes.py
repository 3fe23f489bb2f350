"""What passes cost, worker by worker: fitted from the times that replies carry.

A linear model of each worker's pass, and the time of the wire to it. Reads batches, changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.estimates import Depths, LinearCost, Mean
from coordinator.scheduler.events import PassCost
from coordinator.scheduler.rows import Batch, Worker

CONTEXT_UNIT = 1024
"""Context is counted in this many tokens, so that weights are of like size."""
NUM_FEATURES = 4
FED_TO_TARGET, FED_TO_DRAFT = 2, 3
PROPOSED = 2
"""Places of tokens fed and of tokens proposed among the features of a pass."""
MOST_CROWDED = 4.0
"""A pass that takes more than this many times as long is slow for another reason."""
LEAST_SEEN = 4
"""Passes seen before a forecast is acted on."""
FADING = 0.97
"""What is known of look-ups counts after a round in which nothing was drafted."""
FADED_ROWS = 2.0
"""Rows it does not fade below."""
MADE_MEMORY = 0.98
"""What a row's draft counts of the next one, in what a worker's model makes."""


@dataclass(slots=True)
class WorkerCosts:
    """What is known of one worker. Changed by `PassCosts` only."""

    cost: LinearCost = field(default_factory=lambda: LinearCost(NUM_FEATURES))
    wire: Mean = field(default_factory=lambda: Mean(0.1))
    crowding: Mean = field(default_factory=lambda: Mean(0.05, start=1.0))
    """How many times as long as foretold passes took while the other role computed too."""
    usual_draft: Mean = field(default_factory=lambda: Mean(0.1))
    """Seconds of a draft worker's batches that propose something."""
    usual_steps: Mean = field(default_factory=lambda: Mean(0.1))
    """Passes that its model makes for such a batch."""
    usual_made: Mean = field(default_factory=lambda: Mean(0.1))
    """Tokens that its model makes for a row of such a batch."""
    made: Depths = field(default_factory=lambda: Depths(MADE_MEMORY))
    """What of the tokens asked for a draft worker's model makes; others take no pass."""

    @property
    def is_known(self) -> bool:
        """Whether forecasts mean something."""
        return self.cost.num_seen >= LEAST_SEEN

    @property
    def slowdown(self) -> float:
        """What the other role's computing costs; it never helps.

        Below 1, `crowding` tells of wrong forecasts. Believed, it would make passes on their own
        look slow and those in company cheap, and more groups would then bear it out.
        """
        return max(1.0, self.crowding.value)


class PassCosts:
    """Owns the models of all workers that ever answered with a time."""

    def __init__(self) -> None:
        self._workers: dict[int, WorkerCosts] = {}
        """By `join_index`."""

    def learn(self, batch: Batch, features: Sequence[float], cost: PassCost) -> None:
        """A worker answered a batch with these features."""
        known = self._of(batch.worker)
        known.wire.update(cost.wire_seconds)
        forecast = known.cost.predict(features)
        if batch.is_overlapped and known.is_known and forecast > 0:
            known.crowding.update(min(cost.busy_seconds / forecast, MOST_CROWDED))
        known.cost.update(
            features, cost.busy_seconds / (known.slowdown if batch.is_overlapped else 1.0)
        )

    def note_usual_draft(
        self, worker: Worker, asked: Sequence[int], made: Sequence[int], cost: PassCost
    ) -> None:
        """A batch that proposed something was answered; a model made so much of it, by row."""
        known = self._of(worker)
        pairs = [pair for pair in zip(asked, made, strict=True) if pair[0]]
        known.usual_draft.update(cost.busy_seconds)
        known.usual_steps.update(max(num_made for _, num_made in pairs))
        known.usual_made.update(sum(num_made for _, num_made in pairs) / len(pairs))
        for num_asked, num_made in pairs:
            known.made.note(num_asked, num_made)

    def note_nothing_drafted(self, workers: Iterable[Worker]) -> None:
        """A round did without these draft workers: how much they look up may have changed."""
        for worker in workers:
            self._of(worker).made.fade(FADING, FADED_ROWS)

    def forget(self, worker: Worker) -> None:
        """A worker left."""
        self._workers.pop(worker.join_index, None)

    def is_known(self, worker: Worker) -> bool:
        """Whether what is said of this worker's passes means something yet."""
        return self._of(worker).is_known

    def seconds(self, worker: Worker, features: Sequence[float]) -> float:
        """A pass, or the sum of several, of a worker that is otherwise idle."""
        return self._of(worker).cost.predict(features)

    def wire_seconds(self, worker: Worker) -> float:
        """There and back, all that is neither work nor waiting."""
        return self._of(worker).wire.value

    def usual_draft_seconds(self, worker: Worker) -> float:
        """What a batch that proposes something takes a draft worker; 0 before the first."""
        return self._of(worker).usual_draft.value

    def usual_round_features(self, worker: Worker, num_rows: float) -> tuple[float, ...]:
        """Of a draft worker's usual batch, had it so many rows."""
        known = self._of(worker)
        num_made = num_rows * known.usual_made.value
        return usual_draft_features(num_rows, known.usual_steps.value, num_made)

    def made(self, worker: Worker) -> Depths:
        """What of the tokens asked for its model makes; all before the first."""
        return self._of(worker).made

    def marginal_seconds(self, worker: Worker, feature: int) -> float:
        """What one more unit of a feature adds to a pass."""
        return self._of(worker).cost.weight(feature)

    def crowding(self, worker: Worker) -> float:
        """How many times as long its passes take while the other role computes too."""
        return self._of(worker).slowdown

    def _of(self, worker: Worker) -> WorkerCosts:
        known = self._workers.get(worker.join_index)
        if known is None:
            known = self._workers[worker.join_index] = WorkerCosts()
        return known


def verify_features(orders: Sequence[VerifyOrder]) -> tuple[float, ...]:
    """One, rows, tokens fed, context attended to."""
    tokens = sum(order.end - order.start + order.num_draft_tokens for order in orders)
    context = sum(order.end for order in orders) / CONTEXT_UNIT
    return (1.0, float(len(orders)), float(tokens), context)


def usual_draft_features(
    num_rows: float, num_steps: float, num_proposed: float
) -> tuple[float, ...]:
    """As `draft_features`, for rows that lack what is usual after a round: two tokens each."""
    return (1.0, num_steps, num_proposed, 2.0 * num_rows)


def draft_features(
    orders: Sequence[DraftOrder], num_made: Sequence[int] | None = None
) -> tuple[float, ...]:
    """One, passes, tokens proposed, tokens fed before the first proposal.

    `num_made` of each order's tokens took a pass: others were looked up, or not proposed after all.
    None: all will.
    """
    asked = [order.num_draft_tokens for order in orders]
    made = asked if num_made is None else num_made
    steps = max((n if wanted else 1 for n, wanted in zip(made, asked, strict=True)), default=1)
    fed = sum(order.end - order.start for order in orders)
    return (1.0, float(steps), float(sum(made)), float(fed))
