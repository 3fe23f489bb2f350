"""Few prompts of a data set are a fair sample of it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from exspec.cli.bench_prompts import prompts_by_task
from exspec.core.errors import InvalidRequestError

KINDS = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


@pytest.fixture
def spec_bench(tmp_path) -> str:
    """Eight MT-Bench prompts and eight each of two other tasks, in this order."""
    names = [*KINDS, *["qa"] * 8, *["rag"] * 8]
    lines = [
        json.dumps({"question_id": i, "category": name, "turns": [f"text {i}"]})
        for i, name in enumerate(names)
    ]
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join(lines))
    return f"spec_bench:{path}"


def test_tasks_have_equal_parts_and_each_is_gone_through_at_equal_distances(spec_bench):
    chosen = prompts_by_task(spec_bench, 6)
    assert Counter(one.category for one in chosen) == {"mt_bench": 2, "qa": 2, "rag": 2}
    assert {one.prompt_id for one in chosen} == {"0", "4", "8", "12", "16", "20"}
    assert [one.category for one in chosen[:3]] == ["mt_bench", "qa", "rag"]


@pytest.mark.parametrize("number", [1, 2, 5, 23, 24, None])
def test_as_many_as_asked_for_and_none_twice(spec_bench, number):
    chosen = prompts_by_task(spec_bench, number)
    assert len(chosen) == len({one.prompt_id for one in chosen}) == (number or 24)


def test_a_small_category_does_not_make_them_fewer(tmp_path):
    path = tmp_path / "question.jsonl"
    names = ["qa"] * 1 + ["rag"] * 7
    path.write_text(
        "\n".join(
            json.dumps({"question_id": i, "category": name, "turns": ["text"]})
            for i, name in enumerate(names)
        )
    )
    assert len(prompts_by_task(f"spec_bench:{path}", 6)) == 6


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(InvalidRequestError):
        prompts_by_task(f"spec_bench:{tmp_path / 'nothing'}", 3)
