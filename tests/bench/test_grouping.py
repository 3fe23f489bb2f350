"""Grouping: two sets of prompts, one of equal length, and the command over them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from exspec.bench.grouping import choose_prompts, configurations_of, draw
from exspec.cli.main import app
from exspec.core.errors import InvalidRequestError
from tests.cli.stubs import StubPlan

PROMPTS = [(1,) * length for length in (2, 3, 3, 3, 4, 4, 4, 5, 6, 7)]


def test_the_most_frequent_length_is_taken_and_of_two_the_shorter():
    chosen = choose_prompts(PROMPTS, 3, seed=1)
    assert chosen.equal_length == 3
    assert chosen.sets["equal"] == ((1, 1, 1),) * 3
    assert len(chosen.sets["random"]) == 3
    assert chosen == choose_prompts(PROMPTS, 3, seed=1)
    whole = choose_prompts([(n, n) for n in range(20)], 20, seed=2)
    assert sorted(whole.sets["equal"]) == sorted(whole.sets["random"])
    assert len(set(whole.sets["random"])) == 20


@pytest.mark.parametrize(
    ("number", "words"), [(11, "10 are there"), (4, "the most frequent length, 3 tokens, has 3")]
)
def test_too_few_prompts_are_told(number, words):
    with pytest.raises(InvalidRequestError, match=words):
        choose_prompts(PROMPTS, number, seed=1)


def test_a_draw_is_repeatable_and_never_more_than_there_is():
    texts = [str(number) for number in range(30)]
    assert draw(texts, 5, 3) == draw(texts, 5, 3) != draw(texts, 5, 4)
    assert sorted(draw(texts, 99, 0)) == sorted(texts)


def test_every_policy_and_size_meets_both_sets():
    names = [one.name for one in configurations_of(("exspec",), (2,), "5")]
    assert names == ["exspec, B = 2, K = 5, random prompts", "exspec, B = 2, K = 5, equal prompts"]


def test_the_command_over_stubs(monkeypatch, tmp_path):
    monkeypatch.setattr("exspec.cli.cluster_plan.ClusterPlan", StubPlan)
    lines = tmp_path / "lines.txt"
    lines.write_text("a man\na dog\nthe cat\na sea\n")
    arguments = [
        "bench", "grouping", "--dataset", f"lines:{lines}", "--policies", "exspec",
        "--batch-sizes", "2", "--num-prompts", "2", "--max-tokens", "2", "--json", "-",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["plan"]["equal_length"] == 5
    assert [one["prompt_set"] for one in document["configurations"]] == ["random", "equal"]
    assert "moved rows" in result.stderr
