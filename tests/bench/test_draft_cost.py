"""The draft-cost bench on a tiny model: it runs the passes it says, and its ratios are right."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from exspec.bench import report_draft
from exspec.bench.draft_cost import (
    DraftCost,
    DraftCostPlan,
    DraftCosts,
    ObservedRound,
    measure_draft_cost,
)
from exspec.bench.step_cost import StepCost, StepCostPlan, measure_step_cost
from exspec.core.errors import InvalidRequestError
from exspec.engine.loading import ModelSettings
from exspec.engine.model_runner import ModelRunner


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    path = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


def test_every_context_is_measured(model_dir, monkeypatch):
    passes = []
    forward = ModelRunner.forward

    def seen(self, rows):
        passes.extend((row.slot, row.start, len(row.tokens)) for row in rows)
        return forward(self, rows)

    monkeypatch.setattr(ModelRunner, "forward", seen)
    done = []
    plan = DraftCostPlan(model_dir, (40, 16), 3, 2)
    costs = measure_draft_cost(plan, lambda: done.append(1))
    assert [cost.context for cost in (costs.tiny, *costs.costs)] == [8, 16, 40]
    assert len(done) == 2 * 3
    for cost in costs.costs:
        assert len(cost.round_seconds) == len(cost.observed) == 2
        assert 0 < cost.attention_share < 1
        assert cost.prefill_ratio > 0
    assert passes[-3:] == [(2, 38, 2), (2, 40, 1), (2, 41, 1)]
    assert {size for slot, start, size in passes if start == 0} == {6, 14, 38}
    assert len(report_draft.draft_cost_rows(costs)) == 3


def cost(context, seconds, attention):
    return DraftCost(
        context, (seconds, 9.0), (ObservedRound(seconds, attention),), (4 * seconds, 50.0)
    )


def test_growth_beyond_attention_is_what_counts():
    flat = DraftCosts(cost(8, 0.9, 0.0), (cost(128, 1.0, 0.1), cost(1024, 1.7, 0.8)))
    assert flat.round_growth == pytest.approx(0.7)
    assert flat.rest_growth == pytest.approx(0.0)
    assert flat.is_flat
    growing = DraftCosts(cost(8, 0.9, 0.0), (cost(128, 1.0, 0.1), cost(1024, 2.0, 0.1)))
    assert not growing.is_flat
    assert growing.costs[0].prefill_ratio == pytest.approx(4.0)
    rows = report_draft.draft_cost_rows(growing)
    assert {len(row) for row in rows} == {len(report_draft.DRAFT_COST_COLUMNS)}
    assert any(line.startswith("MISSED") for line in report_draft.draft_cost_lines(growing))


@pytest.mark.parametrize("contexts", [(), (8,), (128, 3)])
def test_contexts_must_be_longer_than_the_tiny_one(contexts):
    with pytest.raises(InvalidRequestError, match="contexts"):
        DraftCostPlan("m", contexts, 5, 20)


def test_a_context_that_does_not_fit_is_refused(model_dir):
    with pytest.raises(InvalidRequestError, match="do not fit the model's 64"):
        measure_draft_cost(DraftCostPlan(model_dir, (63,), 3, 1))


def test_steps_of_draft_and_target_are_taken_in_turn(model_dir, monkeypatch):
    passes = []
    forward = ModelRunner.forward

    def seen(self, rows):
        passes.append((self, [(row.slot, row.start, len(row.tokens)) for row in rows]))
        return forward(self, rows)

    monkeypatch.setattr(ModelRunner, "forward", seen)
    settings = ModelSettings(model_dir, device="cpu")
    costs = measure_step_cost(StepCostPlan(settings, settings, (1, 3), 12, 2))
    assert [cost.num_rows for cost in costs] == [1, 3]
    assert all(len(cost.draft_seconds) == len(cost.target_seconds) == 2 for cost in costs)
    steps = [(runner, rows) for runner, rows in passes if rows[0][1] == 12]
    assert [len(rows) for _, rows in steps] == [1, 1, 1, 1, 3, 3, 3, 3] * 2
    assert all(rows[-1] == (len(rows) - 1, 12, 1) for _, rows in steps)
    draft, target = steps[0][0], steps[2][0]
    assert [runner is draft for runner, _ in steps] == [True, True, False, False] * 4
    assert draft is not target


def test_the_share_is_of_the_fastest_steps():
    cost = StepCost(2, (0.003, 0.002, 0.009), (0.05, 0.04, 0.06))
    assert cost.share == pytest.approx(0.05)
    assert cost.median_share == pytest.approx(0.06)
    (row,) = report_draft.step_cost_rows([cost])
    assert row == ("2", "2.00", "3.00", "40.00", "50.00", "5.0%", "6.0%")
    assert len(row) == len(report_draft.STEP_COST_COLUMNS)


def test_steps_must_fit_the_context(model_dir):
    settings = ModelSettings(model_dir, device="cpu")
    with pytest.raises(InvalidRequestError, match="do not fit"):
        measure_step_cost(StepCostPlan(settings, settings, (1,), 64, 1))
    with pytest.raises(InvalidRequestError, match="row"):
        StepCostPlan(settings, settings, (), 12, 1)
