"""The cost of choosing on a tiny model: passes in turn with greedy ones, and a profile."""

from __future__ import annotations

import pytest

from exspec.bench import report_choosing as report
from exspec.bench.choosing_cost import (
    BOUND_KIND,
    ChoosingCost,
    ChoosingCostPlan,
    Spent,
    kinds_of_rules,
    measure_choosing_cost,
)
from exspec.bench.profiling import Step, steps_of
from exspec.core.errors import InvalidRequestError
from exspec.engine.model_runner import ModelRunner
from tests.engine.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


def test_every_kind_is_measured_in_turn_with_greedy_passes(model_dir, monkeypatch):
    passes = []
    forward = ModelRunner.forward

    def seen(self, rows):
        passes.append([(row.start, len(row.tokens), row.num_choices, row.choosing) for row in rows])
        return forward(self, rows)

    monkeypatch.setattr(ModelRunner, "forward", seen)
    done = []
    plan = ChoosingCostPlan(model_dir, (2, 1), (0, 3), context=20, num_passes=2)
    costs = measure_choosing_cost(plan, "Some text, as people write it.", lambda: done.append(1))
    assert len(done) == len(costs) == 4 * len(kinds_of_rules(0))
    assert [(cost.batch_size, cost.num_drafts) for cost in costs[:: len(kinds_of_rules(0))]] == [
        (2, 0), (2, 3), (1, 0), (1, 3),
    ]  # fmt: skip
    last = passes[-8:]  # two to set up, two pairs, two profiled
    assert {(start, size, choices) for rows in last for start, size, choices, _ in rows} == {
        (19, 4, 4)
    }
    assert [rows[0][3] is not None for rows in last] == [False, True] * 3 + [True] * 2
    ruled = [rows for rows in passes if len(rows) == 2 and rows[0][3] is not None]
    assert all([row[3].rules.seed for row in rows] == [0, 1] for rows in ruled)
    for cost in costs:
        assert len(cost.ruled) == len(cost.greedy) == 2
    drawn = next(cost for cost in costs if cost.kind == BOUND_KIND)
    assert any(step.name.startswith("noise.") for step in drawn.steps)
    assert sum(step.seconds for step in drawn.steps) > 0


def cost(share, kind=BOUND_KIND, batch_size=8):
    greedy = (Spent(1.0, 2.0), Spent(2.0, 4.0), Spent(4.0, 8.0))
    ruled = tuple(Spent((1 + share) * one.seconds, one.processor_seconds) for one in greedy[:2])
    slow = Spent(9.0, 8.0)
    return ChoosingCost(kind, batch_size, 4, greedy, (*ruled, slow), (Step("a.b", 0.1, 2),))


def test_only_plain_sampling_in_batches_of_eight_is_promised():
    made = [cost(0.05), cost(0.5), cost(0.5, batch_size=1), cost(0.5, "penalties")]
    assert made[0].share == pytest.approx(0.05)
    assert made[0].processor_share == pytest.approx(0.0)
    lines = report.choosing_lines(made)
    assert [is_met for _, is_met in lines] == [True, False]
    assert lines[1][0].startswith("MISSED")
    assert {len(row) for row in report.choosing_rows(made)} == {len(report.CHOOSING_COLUMNS)}
    assert report.profiled(made) == made[:2]
    assert report.step_rows(made[0]) == [("a.b", "2", "100.00", "4.8%")]
    plan = ChoosingCostPlan("m", (8,), (4,), 20, 3)
    assert report.choosing_dict(plan, made)["costs"][1]["share"] == pytest.approx(0.5)


def inner(number):
    return sorted(range(number))


def outer():
    return [inner(300), inner(300)]


def test_a_step_is_what_a_function_does_itself_and_calls_outside():
    here = __file__.rpartition("/")[2]
    steps = {step.name: step for step in steps_of(outer, 5, here)}
    assert steps["test_choosing_cost.inner"].num_calls == 2
    assert steps["test_choosing_cost.outer"].num_calls == 1
    assert steps["test_choosing_cost.inner"].seconds > 0
    assert not any(name.startswith("test_choosing_cost.steps_of") for name in steps)


@pytest.mark.parametrize(
    "changes",
    [{"batch_sizes": ()}, {"num_drafts": (-1,)}, {"context": 1}, {"num_passes": 0}],
)
def test_plans_that_measure_nothing_are_refused(changes):
    with pytest.raises(InvalidRequestError):
        ChoosingCostPlan(**{
            "model": "m", "batch_sizes": (8,), "num_drafts": (0,), "context": 20, "num_passes": 3,
            **changes,
        })  # fmt: skip


def test_a_context_that_does_not_fit_is_refused(model_dir):
    with pytest.raises(InvalidRequestError, match="do not fit the model's 256"):
        measure_choosing_cost(ChoosingCostPlan(model_dir, (1,), (4,), 256, 1), "text")
