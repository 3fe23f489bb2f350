"""Data sets: what is taken, and what is said about files that are wrong."""

from __future__ import annotations

import json

import pytest

from exspec.audit.datasets import DatasetPrompt, load_prompts, spread
from exspec.core.errors import InvalidRequestError


def spec_bench(tmp_path, *lines):
    path = tmp_path / "question.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return f"spec_bench:{path}"


def question(number, category="qa", turns=("first", "second")):
    return {"question_id": number, "category": category, "turns": list(turns)}


def test_builtin_prompts_are_varied():
    prompts = load_prompts("builtin")
    assert len(prompts) == 12
    assert len({prompt.prompt_id for prompt in prompts}) == 12
    lengths = [len(prompt.text) for prompt in prompts]
    assert min(lengths) < 5
    assert max(lengths) > 800
    assert any(not prompt.text.isascii() for prompt in prompts)


def test_only_the_first_turn_is_taken(tmp_path):
    (prompt,) = load_prompts(spec_bench(tmp_path, question(81, "writing")))
    assert prompt == DatasetPrompt("81", "writing", "first")


def test_fewer_prompts_are_spread_over_the_categories(tmp_path):
    lines = [question(n, "a" if n < 4 else "b" if n < 6 else "c") for n in range(7)]
    dataset = spec_bench(tmp_path, *lines)
    taken = [prompt.prompt_id for prompt in load_prompts(dataset, 5)]
    assert taken == ["0", "4", "6", "1", "5"]
    assert [prompt.prompt_id for prompt in load_prompts(dataset)] == list("0123456")
    assert len(load_prompts(dataset, 7)) == 7


def test_one_category_is_taken_in_order():
    prompts = [DatasetPrompt(str(n), "", "x") for n in range(5)]
    assert spread(prompts, 3) == tuple(prompts[:3])


def test_lines_keep_their_number_and_skip_blank_ones(tmp_path):
    path = tmp_path / "test.en"
    path.write_bytes("A man.\r\n\nEin\u2028Hund.\n".encode())
    prompts = load_prompts(f"lines:{path}")
    assert [(p.prompt_id, p.text) for p in prompts] == [
        ("line-1", "A man."),
        ("line-3", "Ein\u2028Hund."),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", ["line 2", "not JSON"]),
        ("[1, 2]", ["line 2", "not a JSON object"]),
        ({"category": "qa", "turns": ["x"]}, ["line 2", "question_id"]),
        ({"question_id": 5, "turns": ["x"]}, ["line 2", "category"]),
        ({"question_id": 5, "category": "qa"}, ["line 2", "turns"]),
        (question(5, turns=()), ["line 2", "turns"]),
        (question(5, turns=("",)), ["line 2", "turns"]),
        (question(5, turns=(7,)), ["line 2", "turns"]),
        (question(1), ["question_id", "1", "twice"]),
    ],
)
def test_a_malformed_question_is_named(tmp_path, line, words):
    with pytest.raises(InvalidRequestError) as caught:
        load_prompts(spec_bench(tmp_path, question(1), line))
    assert caught.value.field == "dataset"
    assert all(word in str(caught.value) for word in (*words, "question.jsonl"))


@pytest.mark.parametrize("kind", ["spec_bench", "lines"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, kind):
    missing = tmp_path / "nothing.txt"
    with pytest.raises(InvalidRequestError, match=r"nothing\.txt cannot be read"):
        load_prompts(f"{kind}:{missing}")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_prompts(f"{kind}:{tmp_path}")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(InvalidRequestError, match="holds no prompt"):
        load_prompts(f"{kind}:{empty}")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9\n")
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        load_prompts(f"{kind}:{latin}")


@pytest.mark.parametrize("dataset", ["", "spec_bench", "lines:", "builtin:x", "csv:file"])
def test_an_unknown_kind_is_refused_with_the_known_ones(dataset):
    with pytest.raises(InvalidRequestError, match="spec_bench:PATH"):
        load_prompts(dataset)


@pytest.mark.parametrize("number", [0, 13])
def test_more_prompts_than_there_are_cannot_be_asked_for(number):
    with pytest.raises(InvalidRequestError, match=f"has 12 prompts, {number} were asked for"):
        load_prompts("builtin", number)
