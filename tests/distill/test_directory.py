"""A draft's directory belongs to one plan, and to one run at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exspec.core.errors import InvalidRequestError
from exspec.distill.directory import taken
from exspec.distill.plan import DistillPlan


def a_plan(out: Path, **values) -> DistillPlan:
    return DistillPlan(**{"target": "tiny", "out": out, **values})


def take(plan: DistillPlan) -> None:
    with taken(plan):
        pass


def begin_work(out: Path) -> None:
    (out / "work" / "unit-00000.safetensors").write_bytes(b"made")


def test_the_same_plan_goes_on_and_may_have_other_minutes(tmp_path):
    out = tmp_path / "draft"
    take(a_plan(out, from_layers=(0, 1, 29)))
    begin_work(out)
    take(a_plan(out, from_layers=(0, 1, 29), minutes=5.0))
    stated = json.loads((out / "work" / "plan.json").read_text())
    assert (stated["target"], stated["from_layers"]) == ("tiny", [0, 1, 29])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rate": 1e-3}, "learning_rate is 0.0006 there and 0.001 here"),
        ({"hidden_size": 64}, "hidden_size is null there and 64 here"),
        ({"from_layers": (0, 1, 2)}, r"from_layers is \[\] there and \[0, 1, 2\] here"),
        ({"target": "other"}, 'target is "tiny" there and "other" here'),
    ],
)
def test_another_plan_is_refused_by_what_differs(tmp_path, values, words):
    take(a_plan(tmp_path))
    begin_work(tmp_path)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        take(a_plan(tmp_path, **values))
    assert caught.value.field == next(iter(values))


def test_a_plan_that_came_to_nothing_is_forgotten(tmp_path):
    take(a_plan(tmp_path))
    take(a_plan(tmp_path, num_layers=4))
    begin_work(tmp_path)
    with pytest.raises(InvalidRequestError, match="num_layers"):
        take(a_plan(tmp_path))


def test_prompts_count_by_what_they_say_not_by_where_they_are(tmp_path):
    for name, text in (("a", "same\n"), ("b", "same\n"), ("c", "other\n")):
        (tmp_path / name).write_text(text)
    out = tmp_path / "draft"
    take(a_plan(out, prompts=tmp_path / "a"))
    begin_work(out)
    take(a_plan(out, prompts=tmp_path / "b"))
    for prompts in (tmp_path / "c", None):
        with pytest.raises(InvalidRequestError, match="prompts is"):
            take(a_plan(out, prompts=prompts))


def test_what_something_else_made_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidRequestError, match="not empty, and not made by exspec distill"):
        take(a_plan(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(InvalidRequestError, match=r"thesis\.txt is not a directory"):
        take(a_plan(tmp_path / "thesis.txt"))


def test_two_runs_at_once_are_refused(tmp_path):
    with taken(a_plan(tmp_path)), pytest.raises(InvalidRequestError, match="another run works"):
        take(a_plan(tmp_path))
    take(a_plan(tmp_path))


def test_what_a_killed_run_was_writing_is_removed(tmp_path):
    take(a_plan(tmp_path))
    begin_work(tmp_path)
    (tmp_path / ".export-abc").mkdir()
    (tmp_path / ".export-abc" / "model.safetensors").write_bytes(b"half")
    for path in (tmp_path / ".README.md.1.partial", tmp_path / "work" / "training.pt.partial"):
        path.write_bytes(b"half")
    (tmp_path / "work" / ".runs.json.2.partial").write_bytes(b"half")
    take(a_plan(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    names = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert names == ["lock", "plan.json", "unit-00000.safetensors"]


def test_a_name_that_no_directory_can_have_is_told(tmp_path):
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        take(a_plan(tmp_path / ("x" * 300)))


@pytest.mark.parametrize("content", ["nonsense", "[1]"])
def test_a_damaged_plan_is_named(tmp_path, content):
    take(a_plan(tmp_path))
    begin_work(tmp_path)
    (tmp_path / "work" / "plan.json").write_text(content)
    with pytest.raises(InvalidRequestError, match=r"plan\.json"):
        take(a_plan(tmp_path))
