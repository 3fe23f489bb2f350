"""The reference cache gives back what was put in, and refuses what is not one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exspec.audit.reference_cache import ReferenceCache, ReferenceKey
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError

KEY = ReferenceKey("f00d", "float32", "torch 2", (1, 5, 6), 4, (2,))


def test_a_reference_survives_the_process(tmp_path):
    path = tmp_path / "new" / "references.json"
    cache = ReferenceCache(path)
    assert cache.get(KEY) is None
    cache.put(KEY, (10, 11, 2))
    cache.save()
    assert ReferenceCache(path).get(KEY) == (10, 11, 2)
    assert [file.name for file in path.parent.iterdir()] == ["references.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "beef"},
        {"dtype": "float64"},
        {"numerics": "torch 3"},
        {"prompt_tokens": (1, 5)},
        {"max_tokens": 5},
        {"stop_token_ids": (2, 3)},
        {"rules": ChoiceRules(3, temperature=1.0)},
    ],
)
def test_everything_it_depends_on_is_part_of_the_key(change):
    cache = ReferenceCache()
    cache.put(KEY, (10, 11, 2))
    assert cache.get(replace(KEY, **change)) is None
    assert cache.get(KEY) == (10, 11, 2)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"top_p": 0.5}, {"grammar": Grammar(GrammarKind.REGEX, "a+")}],
)
def test_every_rule_is_part_of_the_key(change):
    cache = ReferenceCache()
    sampled = replace(KEY, rules=ChoiceRules(3, temperature=1.0))
    cache.put(sampled, (10, 11, 2))
    assert cache.get(replace(sampled, rules=replace(sampled.rules, **change))) is None
    assert cache.get(replace(sampled, rules=replace(sampled.rules))) == (10, 11, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        '{"version": 99, "references": {}}',
        '{"version": 1}',
        '{"version": 1, "references": {"short": [1]}}',
        json.dumps({"version": 1, "references": {"a" * 64: "text"}}),
        json.dumps({"version": 1, "references": {"a" * 64: [1, "2"]}}),
        json.dumps({"version": 1, "references": {"a" * 64: [1, -2]}}),
        json.dumps({"version": 1, "references": {"a" * 64: [1, True]}}),
    ],
)
def test_a_file_that_is_no_cache_is_refused_by_name(tmp_path, text):
    path = tmp_path / "cache.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"cache\.json") as caught:
        ReferenceCache(path)
    assert caught.value.field == "reference_cache"


@pytest.mark.parametrize("tokens", [[], [10], [10, 2, 11], [10, 11, 12, 13, 14]])
def test_a_reference_no_decoding_can_give_is_refused(tmp_path, tokens):
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"version": 1, "references": {KEY.digest: tokens}}))
    with pytest.raises(InvalidRequestError, match="no decoding can give"):
        ReferenceCache(path).get(KEY)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ReferenceCache(tmp_path / "file" / "cache.json")
    cache.put(KEY, (10, 11, 2))
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        cache.save()
