"""The speculation length that learns: K per row and round for the most tokens per second.

For every K a round's tokens are predicted from what rows showed (`acceptance`) and its time from
what passes cost (`costs`); what a K really brought corrects its prediction. K = 0 is one of the
choices, so speculation that does not pay is given up. Decisions are kept until another one is
clearly better; while something is drafted a K that was hardly tried is given the benefit of the
doubt, and the runner-up is tried again now and then, more rarely each time it loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.scheduler import acceptance
from coordinator.scheduler.acceptance import AcceptancePool
from coordinator.scheduler.commands import VerifyOrder
from coordinator.scheduler.costs import Costs
from coordinator.scheduler.estimates import Mean
from coordinator.scheduler.events import PassCost, VerifyOutcome
from coordinator.scheduler.outlook import Outlook
from coordinator.scheduler.rows import Batch, Forecast, Phase, Worker
from coordinator.scheduler.speculation import Candidate, RoundPlan, Speedup

DEFAULT_MOST = 12
FIRST_DRAFTS = (3, 1, 4, 0, 2)
"""K in turn before passes are known: different ones, so that what a token costs shows."""
OPTIMISM = 0.25
"""By how much a K that was never tried is overrated; after n rounds of it, 1 / (n + 1) of that."""
MARGIN = 1.03
"""Another K must promise this many times the tokens per second of the present one."""
WORTH_TRYING = 0.9
"""A runner-up that promises less than this share of it is not tried."""
WORTH_PROBING = 0.2
"""The same while nothing is drafted, when a few rows are enough."""
FIRST_PAUSE = 12
PROMISING_PAUSE = 48
LONGEST_PAUSE = 128
"""Rounds between two tries; twice as many each time, up to the one or, if it is far, the other."""
TRIED_ROUNDS = 1
"""Rounds of a try, after the first one."""
PROBED_SHARE = 8
"""While nothing is drafted one row in so many is tried with drafts."""
TRUST_ROUNDS = 6.0
"""Rounds after which a K's measured time counts as much as the predicted one."""
TRUST_ROWS = 200.0
"""Rows of its rounds after which its measured tokens count as much as the predicted ones."""
ARM_MEMORY = 0.97
"""What a round of a K counts of its next one."""
SPEEDUP_RATE = 0.02
LEAST_SLOWNESS = 0.05


@dataclass(slots=True)
class Arm:
    """What one K brought at one size of rounds, and what those rounds were made of (decayed sums).

    Costs are linear in the features, so what all of it should have taken follows at any time from
    the summed features and what is known by then.
    """

    num_rounds: float = 0.0
    num_rows: float = 0.0
    tokens: float = 0.0
    predicted_tokens: float = 0.0
    seconds: float = 0.0
    verify_features: list[float] = field(default_factory=list[float])
    draft_features: list[float] = field(default_factory=list[float])
    draft: Worker | None = None

    def note(self, brought: Brought, forecast: Forecast) -> None:
        """One round."""
        self.num_rounds = ARM_MEMORY * self.num_rounds + 1
        self.num_rows = ARM_MEMORY * self.num_rows + brought.num_rows
        self.tokens = ARM_MEMORY * self.tokens + brought.tokens
        self.predicted_tokens = ARM_MEMORY * self.predicted_tokens + brought.predicted_tokens
        self.seconds = ARM_MEMORY * self.seconds + brought.seconds
        self.verify_features = _added(self.verify_features, forecast.verify_features)
        self.draft_features = _added(self.draft_features, forecast.draft_features)
        self.draft = forecast.draft

    def slowness(self, target: Worker, costs: Costs) -> float:
        """Its rounds' time over what they should have taken by what is known now."""
        wire = costs.wire_seconds(target)
        predicted = costs.seconds(target, self.verify_features)
        if self.draft is not None:
            wire += costs.wire_seconds(self.draft)
            predicted += costs.seconds(self.draft, self.draft_features)
        predicted += self.num_rounds * wire
        return self.seconds / predicted if predicted > 0 else 1.0

    @property
    def fruitfulness(self) -> float:
        """Its rounds' tokens over the predicted ones."""
        return self.tokens / self.predicted_tokens if self.predicted_tokens else 1.0


@dataclass(frozen=True, slots=True)
class Brought:
    """What one round brought: rows that went on, their tokens, the time of the whole round."""

    num_rows: int
    tokens: float
    predicted_tokens: float
    seconds: float


@dataclass(slots=True)
class Habit:
    """What is done at one target for one size of rounds."""

    num_drafts: int | None = None
    pause: int = FIRST_PAUSE
    num_rounds_left: int = FIRST_PAUSE
    """Until the next try."""
    plain_rate: float = 0.0
    """Tokens per row and second of plain decoding, as expected last."""
    arms: dict[int, Arm] = field(default_factory=dict[int, Arm])
    """What every K that was tried brought."""

    def num_tries(self, num_drafts: int) -> float:
        """Rounds of a K (decayed)."""
        arm = self.arms.get(num_drafts)
        return 0.0 if arm is None else arm.num_rounds

    def correction(self, num_drafts: int, target: Worker, costs: Costs) -> float:
        """What a K brings over its prediction; of one never tried: as slow as the nearest tried."""
        own = self.arms.get(num_drafts)
        near = self._nearest(num_drafts)
        slowness = near.slowness(target, costs) if near else 1.0
        fruitfulness = 1.0
        if own is not None:
            trust = own.num_rounds / (own.num_rounds + TRUST_ROUNDS)
            slowness += trust * (own.slowness(target, costs) - slowness)
            trust = own.num_rows / (own.num_rows + TRUST_ROWS)
            fruitfulness += trust * (own.fruitfulness - fruitfulness)
        return fruitfulness / max(slowness, LEAST_SLOWNESS)

    def _nearest(self, num_drafts: int) -> Arm | None:
        tried = [(abs(k - num_drafts), k) for k in self.arms if k != num_drafts]
        return self.arms[min(tried)[1]] if tried else None


class AdaptiveSpeculation:
    """Owns what was learned of every K; one instance serves all targets."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        """`most`: the largest K ever chosen."""
        self._most = most
        self._pool = AcceptancePool(most)
        self._habits: dict[tuple[int, int], Habit] = {}
        """By target and size of rounds (power of two)."""
        self._num_blind_rounds = 0
        self._predicted = Mean(SPEEDUP_RATE)
        self._measured = Mean(SPEEDUP_RATE)

    @property
    def text(self) -> str:
        """The setting."""
        return "auto" if self._most == DEFAULT_MOST else f"auto:{self._most}"

    @property
    def speedup(self) -> Speedup:
        """Of the rounds of late, tries included."""
        return Speedup(self._predicted.value, self._measured.value)

    def plan(
        self, target: Worker, num_rows: int, candidates: Sequence[Candidate], costs: Costs
    ) -> RoundPlan:
        """The K that promises most, cut for each row where its next token would not pay."""
        if not candidates or not self._most:
            return RoundPlan((0,) * len(candidates))
        outlook = Outlook(target, num_rows, candidates, costs, self._pool)
        if not outlook.is_known:
            return self._plan_blindly(candidates)
        size = num_rows.bit_length()
        habit = self._habits.setdefault((target.join_index, size), Habit())
        most = min(self._most, max(one.most for one in candidates))
        scores, hopes = self._scores(outlook, habit, target, most, costs)
        habit.plain_rate = scores[0] / num_rows
        chosen = _decide(habit, scores, hopes)
        self._predicted.update(scores[chosen] / scores[0])
        if not chosen:
            self._pool.fade()
            costs.note_nothing_drafted({one.draft for one in candidates})
        if chosen and not habit.num_drafts:
            return _probe(candidates, chosen)
        counts = outlook.counts(chosen, scores[chosen])
        return RoundPlan(counts, outlook.forecast((size, chosen), counts))

    def _scores(
        self, outlook: Outlook, habit: Habit, target: Worker, most: int, costs: Costs
    ) -> tuple[list[float], list[float]]:
        """Tokens per second of every K up to `most`: as expected, and at the best it may be."""
        scores: list[float] = []
        hopes: list[float] = []
        doubt = self._pool.doubt
        for k in range(most + 1):
            rate = habit.correction(k, target, costs) / outlook.cycle(k)
            scores.append(outlook.tokens(k) * rate)
            optimism = 1 + OPTIMISM / (1 + habit.num_tries(k))
            hopes.append(outlook.tokens(k, doubt) * rate * optimism)
        return scores, hopes

    def _plan_blindly(self, candidates: Sequence[Candidate]) -> RoundPlan:
        """A round from which something can be learned."""
        first = FIRST_DRAFTS[self._num_blind_rounds % len(FIRST_DRAFTS)]
        self._num_blind_rounds += 1
        return RoundPlan(tuple(min(first, self._most, one.most) for one in candidates))

    def learn(self, batch: Batch, outcomes: Sequence[VerifyOutcome], cost: PassCost | None) -> None:
        """The record of all rows, and what the K of this round brought."""
        num_rows, tokens, predicted = 0, 0, 0.0
        reached = list[tuple[int, int, int, int]]()
        for row, order, outcome in zip(batch.rows, batch.orders, outcomes, strict=True):
            if not isinstance(order, VerifyOrder) or order.is_prefill:
                return
            if outcome.is_finished or not outcome.num_committed or row.phase is Phase.FINISHED:
                continue  # a cut block, or none, says little of what was accepted
            number, num_accepted = order.num_draft_tokens, outcome.num_committed - 1
            num_rows += 1
            tokens += outcome.num_committed
            planned = acceptance.planned(row, number)
            level = self._pool.level(row)
            predicted += self._pool.expected_tokens(level, planned)
            if planned:
                self._pool.note(num_accepted, acceptance.judged(planned, num_accepted))
                reached.append((level, planned, num_accepted, number))
        # After all predictions: each would be worked out anew, had the places changed between.
        for level, planned, num_accepted, number in reached:
            self._pool.note_places(level, planned, num_accepted)
            self._pool.made.note(planned, number)
        group = batch.group
        if group is None or group.forecast is None or cost is None or not num_rows:
            return
        seconds = group.draft_seconds + cost.elapsed_seconds - cost.queued_seconds
        size, number = group.forecast.arm
        brought = Brought(num_rows, tokens, predicted, seconds)
        habit = self._habits[batch.worker.join_index, size]
        habit.arms.setdefault(number, Arm()).note(brought, group.forecast)
        if habit.plain_rate > 0 and seconds > 0:
            self._measured.update(tokens / num_rows / seconds / habit.plain_rate)

    def forget(self, target: Worker) -> None:
        """Its habits would be kept for ever, and never used."""
        for key in [key for key in self._habits if key[0] == target.join_index]:
            del self._habits[key]


def _decide(habit: Habit, scores: Sequence[float], hopes: Sequence[float]) -> int:
    """The K to use now: the present one, a clearly better one, or a try of another."""
    best = _argmax(scores)
    if habit.num_drafts is None:
        habit.num_drafts = best
    present = min(habit.num_drafts, len(scores) - 1)
    hopeful = _argmax(hopes)
    if present and hopes[hopeful] > MARGIN * hopes[present] and scores[hopeful] < scores[best]:
        return hopeful
    if scores[best] > MARGIN * scores[present]:
        habit.num_drafts = best
        habit.pause = habit.num_rounds_left = FIRST_PAUSE
        return best
    habit.num_rounds_left -= 1
    if habit.num_rounds_left > 0 or len(scores) == 1:
        return present
    runner_up = _argmax([0.0 if k == present else score for k, score in enumerate(scores)])
    promise = scores[runner_up] / scores[present]
    if habit.num_rounds_left <= -TRIED_ROUNDS:
        longest = PROMISING_PAUSE if promise > WORTH_TRYING else LONGEST_PAUSE
        habit.pause = habit.num_rounds_left = min(2 * habit.pause, longest)
    return runner_up if promise >= (WORTH_TRYING if present else WORTH_PROBING) else present


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _probe(candidates: Sequence[Candidate], num_drafts: int) -> RoundPlan:
    """A try while nothing is drafted: a few rows show how well drafts do, those fed for least."""
    backlogs = sorted(one.row.draft_backlog for one in candidates)
    most = backlogs[len(candidates) // PROBED_SHARE]
    counts = [min(num_drafts, one.most) * (one.row.draft_backlog <= most) for one in candidates]
    return RoundPlan(tuple(counts), is_probe=True)


def _added(sums: Sequence[float], features: Sequence[float]) -> list[float]:
    """Decayed sums and one round more."""
    old = sums or [0.0] * len(features)
    return (
        [ARM_MEMORY * a + b for a, b in zip(old, features, strict=True)] if features else list(old)
    )
