"""The promise, policy by policy: however rows are grouped, drafted, delayed and moved between real
workers, the tokens are those of plain decoding of one sequence by transformers' own cache.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest

from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policies import POLICIES
from exspec.engine.kv.layout import KvLayoutName
from tests.engine.conftest import make_prompts, reference_of
from tests.engine.policy_workers import Setting
from tests.engine.policy_world import Request, World
from tests.engine.tiny import VOCAB_SIZE

RULES = ("0", "3", "auto", "[[1,2,4],[3,8,1]]")
PROMPTS = [*make_prompts(9, seed=21), tuple(Random(5).randrange(VOCAB_SIZE) for _ in range(60))]
MAX_TOKENS = 18
NUM_AT_ONCE, NUM_REQUESTS = 4, 8
MAX_MISHAPS = 4
"""Fewer than the failures after which a sequence is given up."""


def truth(request: Request, family: str) -> tuple[int, ...]:
    whole = reference_of(family, request.prompt, MAX_TOKENS)[: request.max_tokens]
    ends = [i for i, token in enumerate(whole) if token in request.stops]
    return whole[: ends[0] + 1] if ends else whole


def drawn_request(random: Random, family: str) -> Request:
    prompt = random.choice(PROMPTS)
    request = Request(prompt, random.choice([1, 2, 9, 14, MAX_TOKENS]))
    if random.random() < 0.2:
        request.stops = (random.choice(reference_of(family, prompt, MAX_TOKENS)),)
    if random.random() < 0.2:
        request.num_speculative_tokens = random.choice([0, 1, 7])
    return request


class Course:
    """Draws what happens to a world until everything was asked, then lets it settle."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.random = Random(seed)
        self.setting = setting
        self.world = World(setting, seed)
        self.num_mishaps = 0

    def run(self) -> World:
        for _ in range(NUM_AT_ONCE):
            self._ask()
        while len(self.world.requests) < NUM_REQUESTS:
            self._happen()
        self.world.settle()
        self._judge()
        return self.world

    def _happen(self) -> None:
        happenings = (self._step, self._ask, self._lose_patience, self._cancel, self._mishap)
        (happen,) = self.random.choices(happenings, (75, 10, 8, 2, 2))
        happen()
        for member in self.world.members.values():
            if self.setting.num_ahead and member.drafter is not None and not member.inbox:
                member.drafter.draft_ahead()

    def _step(self) -> None:
        if not self.world.step():
            self._ask()

    def _ask(self) -> None:
        self.world.ask(drawn_request(self.random, self.setting.family))

    def _lose_patience(self) -> None:
        if self.world.patience:
            self.world.run_out_of_patience()

    def _cancel(self) -> None:
        if self.world.requests:
            self.world.cancel(self.random.choice(list(self.world.requests)))

    def _mishap(self) -> None:
        if self.num_mishaps < MAX_MISHAPS:
            self.num_mishaps += 1
            mishap = self.random.choice([self.world.lose, self.world.lose, self.world.drain])
            mishap(self.random.choice(list(self.world.members.values())))

    def _judge(self) -> None:
        for name, request in self.world.requests.items():
            expected = truth(request, self.setting.family)
            got = tuple(request.tokens)
            if request.is_cancelled:
                assert got == expected[: len(got)], name
            else:
                assert request.is_completed, (name, request.end)
                assert got == expected, name


def seed_of(setting: Setting) -> int:
    """Each setting has a course of its own."""
    return crc32(repr(setting).encode())


def limits(window: int, in_flight: int) -> SchedulerLimits:
    return SchedulerLimits(
        batch_size=2,
        window_size=window,
        max_batches_in_flight=in_flight,
        max_prefill_tokens=24,
        max_mixed_prefill_tokens=11,
    )


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_of_plain_decoding(policy, layout, rule, window, in_flight):
    setting = Setting(policy, rule, layout, limits(window, in_flight))
    Course(setting, seed_of(setting)).run()


@pytest.mark.parametrize("family", ["qwen3", "glm4", "gpt2", "opt"])
@pytest.mark.parametrize("policy", ["eqspec", "exspec"])
def test_several_workers_that_draft_ahead(policy, layout, family):
    setting = Setting(
        policy, "auto", layout, limits(5, 2), family, num_targets=2, num_drafts=2, num_ahead=3
    )
    Course(setting, seed_of(setting)).run()


@pytest.mark.parametrize("seed", range(24))
def test_any_setting(seed):
    """Also odd ones, drawn from the seed."""
    random = Random(seed)
    batch_size = random.choice([1, 2, 3])
    bounds = SchedulerLimits(
        batch_size=batch_size,
        window_size=batch_size + random.choice([0, 1, 3]),
        max_batches_in_flight=random.choice([1, 2, 3]),
        max_prefill_tokens=random.choice([5, 24, 512]),
        max_mixed_prefill_tokens=random.choice([1, 4, None]),
    )
    setting = Setting(
        random.choice(list(POLICIES)),
        random.choice([*RULES, "auto:2", "7"]),
        random.choice(list(KvLayoutName)),
        bounds,
        num_targets=random.choice([1, 2]),
        num_drafts=random.choice([0, 1, 3]),
        num_ahead=random.choice([0, 3]),
    )
    Course(setting, seed).run()


def test_the_courses_are_eventful(layout):
    """What is to be tested does happen: else the courses have become too tame."""
    settings = [
        Setting(policy, rule, layout, limits(5, 2))
        for policy in ("eqspec", "exspec")
        for rule in ("3", "auto")
    ]
    worlds = [Course(setting, seed_of(setting) + 1).run() for setting in settings]
    totals = [world.accounting.totals for world in worlds]
    for name in ("num_overdue_drafts", "num_draft_failures", "num_plain_row_rounds"):
        assert sum(getattr(one, name) for one in totals) > 0, name
    num_drafted = sum(one.num_draft_tokens for one in totals)
    assert 0.3 < sum(one.num_accepted_tokens for one in totals) / num_drafted < 0.9
    num_moved = sum(one.num_moved_rows for one in totals)
    assert bool(num_moved) is (layout is KvLayoutName.PADDED)
    assert any(world.driver.scheduler.rule.speedup.predicted for world in worlds)
    assert max(one.rows_per_round for one in totals) > 1.5
