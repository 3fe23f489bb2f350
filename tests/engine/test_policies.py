"""The promise, policy by policy: however rows are grouped, drafted, delayed and moved between real
workers, the tokens are those of plain decoding of one sequence by transformers' own cache.
"""

from __future__ import annotations

from random import Random

import pytest

from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policies import POLICIES
from exspec.engine.kv.layout import KvLayoutName
from tests.engine.policy_courses import Course, limits, seed_of
from tests.engine.policy_workers import Setting

RULES = ("0", "3", "auto", "[[1,2,4],[3,8,1]]")


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
