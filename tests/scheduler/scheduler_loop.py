"""A closed loop in virtual time: workers whose passes take what a linear model says, acceptance
with a known chance. What a rule should choose is then known too. Deterministic by its seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from coordinator.scheduler.commands import Draft, Release, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftOutcome,
    DraftOverdue,
    PassCost,
    SequenceArrived,
    VerifyCompleted,
    VerifyOutcome,
    WorkerJoined,
)
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

OK = EntryStatus.OK


@dataclass(frozen=True)
class Machine:
    """Seconds: a verify's fixed part and each token, a draft's fixed part, each step and token."""

    verify: float = 0.020
    verify_token: float = 0.0005
    draft: float = 0.001
    draft_step: float = 0.002
    draft_token: float = 0.0001
    wire: float = 0.001

    def verify_seconds(self, num_tokens: int) -> float:
        return self.verify + self.verify_token * num_tokens

    def draft_seconds(self, num_steps: int, num_tokens: int) -> float:
        return self.draft + self.draft_step * num_steps + self.draft_token * num_tokens

    def rate(self, num_rows: int, num_drafts: int, alpha: float) -> float:
        """Tokens per second of rounds one after another with this K, computed by hand."""
        tokens = sum(alpha**power for power in range(num_drafts + 1))
        seconds = self.verify_seconds(num_rows * (1 + num_drafts)) + self.wire
        if num_drafts:
            fed = num_rows * tokens
            seconds += self.draft_seconds(num_drafts, num_rows * num_drafts + fed) + self.wire
        return num_rows * tokens / seconds

    def best(self, num_rows: int, alpha: float, most: int = 8) -> float:
        return max(self.rate(num_rows, k, alpha) for k in range(most + 1))


@dataclass(frozen=True)
class Round:
    """A verify that was answered: when, how many rows, the largest K, tokens committed."""

    at: float
    num_rows: int
    num_drafts: int
    num_tokens: int
    num_in_play: int
    seconds: float


@dataclass
class Loop:
    """`alpha` gives the chance of a draft token at a time."""

    machine: Machine
    alpha: Callable[[float], float]
    rule: str = "auto"
    policy: str = "eqspec"
    batch_size: int = 8
    window_size: int | None = None
    seed: int = 1
    rounds: list[Round] = field(default_factory=list)
    drafts: list[tuple[float, Draft]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        limits = SchedulerLimits(batch_size=self.batch_size, window_size=self.window_size)
        rule = speculation_rule(self.rule)
        self.scheduler = Scheduler(POLICIES[self.policy](), limits, speculation=rule)
        self._random = Random(self.seed)
        self._queue: list = []
        self._index = count()
        self._free = {"t": 0.0, "d": 0.0}
        self._flying: set[int] = set()
        self._num_arrived = 0
        self.tell(WorkerJoined("t", Role.TARGET, limits.window, 10**9))
        self.tell(WorkerJoined("d", Role.DRAFT, limits.window, 10**9))

    def fill(self, num_rows: int, length: int = 10) -> None:
        """Sequences that never end."""
        for _ in range(num_rows):
            self._num_arrived += 1
            self.tell(SequenceArrived(f"s{self._num_arrived}", length, 10**8))

    def hang(self, worker: str, seconds: float) -> None:
        """It does nothing for so long."""
        self._free[worker] = self.now + seconds

    def run_until(self, num_rounds: int) -> list[Round]:
        """Go on until so many verifies were answered; returns those of this call."""
        first = len(self.rounds)
        while len(self.rounds) < first + num_rounds:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        return self.rounds[first:]

    def tell(self, event) -> None:
        for command in self.scheduler.handle(event):
            if isinstance(command, Draft):
                self._send_draft(command)
            elif isinstance(command, Verify):
                self._send_verify(command)
            else:
                assert isinstance(command, Release)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._index), act))

    def _serve(self, worker: str, busy: float, reply: Callable[[PassCost], None]) -> None:
        """One thing at a time, in the order it was sent."""
        sent, arrives = self.now, self.now + self.machine.wire / 2
        begins = max(arrives, self._free[worker])
        self._free[worker] = begins + busy
        elapsed = begins + busy + self.machine.wire / 2 - sent
        cost = PassCost(busy, elapsed, begins - arrives)
        self._after(elapsed, lambda: reply(cost))

    def _send_draft(self, command: Draft) -> None:
        self.drafts.append((self.now, command))
        self._flying.add(command.batch_id)
        steps = max(max(order.num_draft_tokens for order in command.orders), 1)
        tokens = sum(one.end - one.start + one.num_draft_tokens for one in command.orders)

        def reply(cost: PassCost) -> None:
            self._flying.remove(command.batch_id)
            outcomes = [
                DraftOutcome(one.key.sequence_id, OK, one.num_draft_tokens, one.end)
                for one in command.orders
            ]
            self.tell(DraftCompleted("d", command.batch_id, tuple(outcomes), cost))

        self._serve("d", self.machine.draft_seconds(steps, tokens), reply)
        self._after(command.patience_seconds, lambda: self._give_up(command.batch_id))

    def _give_up(self, batch_id: int) -> None:
        if batch_id in self._flying:
            self.tell(DraftOverdue("d", batch_id))

    def _send_verify(self, command: Verify) -> None:
        tokens = sum(one.end - one.start + one.num_draft_tokens for one in command.orders)

        def reply(cost: PassCost) -> None:
            outcomes = [self._outcome(order) for order in command.orders]
            self._note(command, outcomes, cost.busy_seconds)
            self.tell(VerifyCompleted("t", command.batch_id, tuple(outcomes), cost))

        self._serve("t", self.machine.verify_seconds(tokens), reply)

    def _outcome(self, order) -> VerifyOutcome:
        if order.is_prefill:
            return VerifyOutcome(order.key.sequence_id, OK, 0, order.end)
        alpha, accepted = self.alpha(self.now), 0
        while accepted < order.num_draft_tokens and self._random.random() < alpha:
            accepted += 1
        return VerifyOutcome(order.key.sequence_id, OK, accepted + 1, order.end + accepted)

    def _note(self, command: Verify, outcomes, seconds: float) -> None:
        target = self.scheduler.state.workers["t"]
        numbers = [order.num_draft_tokens for order in command.orders]
        self.rounds.append(
            Round(
                self.now,
                len(numbers),
                max(numbers),
                sum(outcome.num_committed for outcome in outcomes),
                len(target.groups) + len(target.batches),
                seconds,
            )
        )


def rate_of(rounds: list[Round]) -> float:
    """Tokens per second."""
    return sum(one.num_tokens for one in rounds[1:]) / (rounds[-1].at - rounds[0].at)


def usual(rounds: list[Round]) -> int:
    """The K of most rounds."""
    numbers = [one.num_drafts for one in rounds]
    return max(set(numbers), key=numbers.count)
