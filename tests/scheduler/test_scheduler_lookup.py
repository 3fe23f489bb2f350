"""The rule that learns beside a draft worker whose look-ups take no pass of its model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from scheduler_loop import Loop, Machine, rate_of

from coordinator.scheduler.commands import DraftOrder
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftOutcome,
    DraftOverdue,
    PassCost,
    VerifyOutcome,
)
from coordinator.scheduler.passes import draft_features
from exspec.core.ids import Role
from exspec.core.rounds import EntryKey, EntryStatus

CHEAP = Machine()
DEAR = Machine(draft=0.0005, draft_step=0.006)
"""Its drafts take so long that they hardly pay, but a look-up takes next to nothing."""


@dataclass
class LookupLoop(Loop):
    """Rows are looked up in stretches, for `share` of the time, and then accepted more often."""

    share: float = 0.5
    stretch: int = 3
    is_told: bool = True
    """Whether replies say what was looked up."""
    _looked_up: set[str] = field(default_factory=set[str])
    _num_drafts: int = 0

    def _send_draft(self, command) -> None:
        self.drafts.append((self.now, command))
        self._flying.add(command.batch_id)
        made = [self._made(order) for order in command.orders]
        steps = max(
            n if one.num_draft_tokens else 1 for one, n in zip(command.orders, made, strict=True)
        )
        tokens = sum(made) + sum(one.end - one.start for one in command.orders)

        def reply(cost: PassCost) -> None:
            self._flying.remove(command.batch_id)
            outcomes = [
                DraftOutcome(one.key.sequence_id, EntryStatus.OK, one.num_draft_tokens, one.end,
                             (one.num_draft_tokens - n) * self.is_told)
                for one, n in zip(command.orders, made, strict=True)
            ]  # fmt: skip
            self.tell(DraftCompleted("d", command.batch_id, tuple(outcomes), cost))

        busy = self.machine.draft_seconds(steps, tokens) if steps else 0.0002
        self._serve("d", busy, reply)
        self._after(command.patience_seconds, lambda: self._late(command.batch_id))

    def _late(self, batch_id: int) -> None:
        if batch_id in self._flying:
            self.tell(DraftOverdue("d", batch_id))

    def _made(self, order) -> int:
        """Tokens by the model."""
        self._num_drafts += 1
        name = order.key.sequence_id
        if self._num_drafts % self.stretch == 0:
            is_looked_up = self._random.random() < self.share
            (self._looked_up.add if is_looked_up else self._looked_up.discard)(name)
        return 0 if name in self._looked_up else order.num_draft_tokens

    def _outcome(self, order):
        own = self.alpha
        if order.key.sequence_id in self._looked_up:
            self.alpha = lambda now: 0.85
        try:
            return super()._outcome(order)
        finally:
            self.alpha = own


def rate(machine, num_rows: int, rule: str, alpha: float, share: float, is_told=True) -> float:
    loop = LookupLoop(
        machine, lambda now: alpha, rule, batch_size=num_rows, share=share, is_told=is_told
    )
    loop.fill(num_rows)
    loop.run_until(150)
    return rate_of(loop.run_until(600))


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize(("num_rows", "alpha"), [(1, 0.5), (4, 0.3)])
@pytest.mark.parametrize("machine", [CHEAP, DEAR], ids=str)
def test_it_comes_near_what_a_fixed_k_brings_and_stays_above_plain_decoding(
    machine, num_rows, alpha, share
):
    plain, *others = (rate(machine, num_rows, k, alpha, share) for k in ("0", "3", "6"))
    learned = rate(machine, num_rows, "auto", alpha, share)
    assert learned > 0.95 * plain
    assert learned > 0.85 * max(others)  # tries and the luck of acceptance included


@pytest.mark.parametrize("num_rows", [1, 4, 8])
def test_look_ups_that_begin_to_help_end_a_time_without_drafts(num_rows):
    """A model whose every step takes as long as a verify is given up; its look-ups are not."""
    dearest = Machine(draft=0.0005, draft_step=0.02)
    loop = LookupLoop(dearest, lambda now: 0.02, batch_size=num_rows, share=0.0)
    loop.fill(num_rows)
    plain = rate_of(loop.run_until(500)[400:])
    loop.share = 0.95
    loop.run_until(600)
    assert rate_of(loop.run_until(400)) > 1.15 * plain


@pytest.mark.parametrize("num_rows", [1, 4])
def test_look_ups_bring_what_they_do_with_a_fixed_k_however_dear_the_model_is(num_rows):
    """What was known of long drafts, from when the model made them all, is out of date."""
    dearest = Machine(draft=0.0005, draft_step=0.02)

    def rate_with(rule: str) -> float:
        loop = LookupLoop(dearest, lambda now: 0.02, rule, batch_size=num_rows, share=0.0)
        loop.fill(num_rows)
        loop.run_until(500)
        loop.share = 0.95
        loop.run_until(800)
        return rate_of(loop.run_until(600))

    assert rate_with("auto") > 0.85 * max(map(rate_with, ("2", "4")))


def _orders(*numbers: int) -> list[DraftOrder]:
    return [DraftOrder(EntryKey(f"s{i}", 0, 1), 4, 6, n) for i, n in enumerate(numbers)]


def test_what_was_looked_up_is_no_pass_and_no_token_of_the_model():
    assert draft_features(_orders(5, 3)) == (1, 5, 8, 4)
    assert draft_features(_orders(5, 3), (0, 2)) == (1, 2, 2, 4)
    assert draft_features(_orders(5, 3), (0, 0)) == (1, 0, 0, 4)
    assert draft_features(_orders(5, 0), (0, 0)) == (1, 1, 0, 4)


def test_free_look_ups_do_not_make_the_models_steps_look_cheap():
    loop = LookupLoop(CHEAP, lambda now: 0.6, "4", batch_size=1, share=0.6)
    loop.fill(1)
    loop.run_until(300)
    worker = loop.scheduler.state.workers["d"]
    assert worker.role is Role.DRAFT
    costs = loop.scheduler._costs
    made = costs.seconds(worker, draft_features(_orders(4)))
    assert made == pytest.approx(CHEAP.draft_seconds(4, 6), rel=0.15)
    assert costs.seconds(worker, draft_features(_orders(4), (0,))) < 0.3 * made


@dataclass
class EarlyLoop(Loop):
    """A draft ends behind its first unsure token, which is hardly ever right; the others are."""

    sure_share: float = 0.6
    _num_sure: dict[str, int] = field(default_factory=dict[str, int])

    def _send_draft(self, command) -> None:
        self._flying.add(command.batch_id)
        made = [self._made(order) for order in command.orders]
        tokens = sum(made) + sum(one.end - one.start for one in command.orders)

        def reply(cost: PassCost) -> None:
            self._flying.remove(command.batch_id)
            outcomes = [
                DraftOutcome(one.key.sequence_id, EntryStatus.OK, n, one.end)
                for one, n in zip(command.orders, made, strict=True)
            ]
            self.tell(DraftCompleted("d", command.batch_id, tuple(outcomes), cost))

        self._serve("d", self.machine.draft_seconds(max(1, *made), tokens), reply)
        self._after(command.patience_seconds, lambda: self._give_up(command.batch_id))

    def _made(self, order) -> int:
        number = 0
        while number < order.num_draft_tokens and self._random.random() < self.sure_share:
            number += 1
        self._num_sure[order.key.sequence_id] = number
        return min(number + 1, order.num_draft_tokens)

    def _outcome(self, order):
        if order.is_prefill:
            return super()._outcome(order)
        sure = min(self._num_sure.get(order.key.sequence_id, 0), order.num_draft_tokens)
        return VerifyOutcome(order.key.sequence_id, EntryStatus.OK, sure + 1, order.end + sure)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("sure_share", [0.3, 0.7])
def test_drafts_that_end_early_are_judged_by_what_they_bring(num_rows, sure_share):
    def rate_with(rule: str) -> float:
        loop = EarlyLoop(CHEAP, lambda now: 0.0, rule, batch_size=num_rows, sure_share=sure_share)
        loop.fill(num_rows)
        loop.run_until(150)
        return rate_of(loop.run_until(600))

    assert rate_with("auto") > 0.9 * max(map(rate_with, ("0", "2", "4", "8")))
