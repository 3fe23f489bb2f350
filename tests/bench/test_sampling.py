"""Acceptance under sampling: what is sent, what is made of the answers, what is told."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from exspec.bench import report_sampling as report
from exspec.bench.load import LoadPlan
from exspec.bench.sampling import (
    GREEDY,
    SHARED,
    SamplingPlan,
    SamplingRuns,
    SamplingSample,
    Setting,
    settings_of,
)
from exspec.cli.bench import app as bench_app
from exspec.cli.main import app
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import SpeculationStats

PLAN = SamplingPlan((Setting(0), Setting(1, 0.95)), 3, 4, 2, first_seed=7)
PROMPTS = ((1, 2), (3,))


def sample(setting, method, accepted, tokens=((1,), (2,))):
    stats = SpeculationStats(10, 20, sum(accepted), 3, (10, 6, 4), accepted)
    return SamplingSample(setting, method, stats, tokens)


def runs_of(*samples):
    runs = SamplingRuns(PLAN)
    runs.plain = dict.fromkeys(PLAN.settings, ((1,), (2,)))
    runs.samples = list(samples)
    return runs


def test_greedy_is_measured_once_whatever_the_top_p():
    assert settings_of((0, 0.7), (1, 0.95)) == (Setting(0), Setting(0.7), Setting(0.7, 0.95))


def test_every_request_has_its_own_seed_and_the_same_one_in_every_run():
    with FakeCoordinator() as fake:
        runs = SamplingRuns(PLAN)
        done = []
        runs.measure_plain(fake.address, PROMPTS, lambda: done.append(1))
        runs.measure(fake.address, PROMPTS, SHARED)
        asked = fake.requests
    assert len(done) == 4
    assert len(asked) == 8
    for first in (0, 2, 4, 6):
        by_prompt = {one.prompt.token_ids: one.sampling for one in asked[first : first + 2]}
        assert [by_prompt[prompt].seed for prompt in PROMPTS] == [7, 8]
        assert {one.temperature for one in by_prompt.values()} == {0.0 if first in (0, 4) else 1.0}
        assert all(one.ignore_eos for one in by_prompt.values())
    numbers = [one.speculation.num_speculative_tokens for one in asked]
    assert numbers == [0] * 4 + [3] * 4


def test_drafts_are_summed_place_by_place():
    with FakeCoordinator() as fake:
        for stats in (SpeculationStats(2, 5, 2, 1, (2, 2, 1), (1, 1, 0)),
                      SpeculationStats(1, 1, 1, 0, (1,), (1,))):  # fmt: skip
            fake.script(FakeReply("a", speculation=stats))
        runs = SamplingRuns(SamplingPlan((Setting(1),), 3, 4, 1))
        runs.measure(fake.address, PROMPTS, SHARED)
    (found,) = runs.samples
    assert found.speculation == SpeculationStats(3, 6, 3, 1, (3, 2, 1), (2, 1, 0))
    assert found.rates_per_position == (2 / 3, 0.5, 0.0)
    assert found.first_rate == 2 / 3


def test_without_a_first_seed_nothing_is_said_of_seeds():
    assert LoadPlan(1, {"max_tokens": 3}).options_of(5) == {"max_tokens": 3}
    assert LoadPlan(1, {"max_tokens": 3}, first_seed=2).options_of(5)["seed"] == 7


def test_a_row_for_each_kind_of_draft_and_a_line_for_what_was_expected():
    greedy, drawn = PLAN.settings
    runs = runs_of(
        sample(greedy, SHARED, (5, 3, 1)),
        sample(drawn, SHARED, (6, 3, 1)),
        sample(greedy, GREEDY, (5, 3, 1)),
        sample(drawn, GREEDY, (4, 1, 0)),
    )
    rows = report.sampling_rows(runs)
    assert [row[:3] for row in rows] == [
        ("greedy", "1", "shared noise"),
        ("greedy", "1", "argmax"),
        ("temperature 1", "0.95", "shared noise"),
        ("temperature 1", "0.95", "argmax"),
    ]
    assert {len(row) for row in rows} == {len(report.SAMPLING_COLUMNS)}
    assert rows[2][4:] == ("50.0%", "60.0%", "60 50 25 %", "2.00", "2/2")
    assert [is_met for _, is_met in report.sampling_lines(runs)] == [True, True]
    document = report.sampling_dict(runs)
    assert document["is_exact"] is True
    assert document["samples"][1]["first_rate"] == 0.6


def test_tokens_that_differ_and_noise_that_does_not_help_are_said():
    drawn = PLAN.settings[1]
    runs = runs_of(
        sample(drawn, SHARED, (1, 0, 0), tokens=((1,), (9,))), sample(drawn, GREEDY, (2, 0, 0))
    )
    assert not runs.is_exact
    lines = report.sampling_lines(runs)
    assert [is_met for _, is_met in lines] == [False, False]
    assert all(line.startswith("MISSED") for line, _ in lines)
    assert report.sampling_rows(runs)[0][-1] == "1/2"


def test_plans_that_measure_nothing_are_refused():
    with pytest.raises(InvalidRequestError, match="draft token"):
        SamplingPlan((Setting(1),), 0, 4, 1)
    with pytest.raises(InvalidRequestError, match="temperature"):
        SamplingPlan((), 3, 4, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sampling", "--temperatures", "0,hot"], "--temperatures"),
        (["sampling", "--top-ps", "-1"], "--top-ps"),
        (["choosing-cost", "--num-drafts", "1.5"], "whole numbers"),
        (["choosing-cost", "--batch-sizes", "0"], "--batch-sizes"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments, words):
    assert bench_app.registered_commands
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert words in result.output
