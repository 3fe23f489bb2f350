"""Keywords become values: each has a type and bounds, and nothing wrong leaves the client."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy
import pytest

from exspec.client.options import BatchOptions, GenerateOptions, Options
from exspec.client.requests import plan_batch, plan_generate
from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.core.params import MAX_GRAMMAR_LENGTH, SamplingParams, SpeculationParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
GIVEN = {
    "max_tokens": 9, "min_tokens": 2, "stop": ["x", "y"], "include_stop_str_in_output": True,
    "stop_token_ids": [7], "ignore_eos": True, "temperature": 0.7, "top_k": 40, "top_p": 0.9,
    "min_p": 0.05, "typical_p": 0.95, "repetition_penalty": 1.1, "presence_penalty": -0.5,
    "frequency_penalty": 0.5, "logit_bias": {3: 1.5, 4: -100}, "bad_words": "no",
    "bad_words_ids": [[1, 2], [3]], "banned_token_ids": {5}, "allowed_token_ids": range(9),
    "seed": 2**64 - 1, "logprobs": 3, "prompt_logprobs": 0,
}  # fmt: skip


def sampling_of(**options):
    return Options(options, GenerateOptions).sampling()


def speculation_of(**options):
    return Options(options, GenerateOptions).speculation()


def test_every_sampling_parameter_has_a_keyword():
    named = {field.name for field in fields(SamplingParams)} - {"structured"}
    assert named == set(GIVEN)
    assert named | {"json_schema", "regex", "grammar"} <= set(GenerateOptions.__annotations__)


def test_keywords_become_values():
    assert sampling_of(**GIVEN) == SamplingParams(
        max_tokens=9, min_tokens=2, stop=("x", "y"), include_stop_str_in_output=True,
        stop_token_ids=(7,), ignore_eos=True, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05,
        typical_p=0.95, repetition_penalty=1.1, presence_penalty=-0.5, frequency_penalty=0.5,
        logit_bias=((3, 1.5), (4, -100.0)), bad_words=("no",), bad_words_ids=((1, 2), (3,)),
        banned_token_ids=(5,), allowed_token_ids=tuple(range(9)), seed=2**64 - 1, logprobs=3,
        prompt_logprobs=0,
    )  # fmt: skip


def test_none_is_the_same_as_leaving_a_keyword_out():
    nothing = dict.fromkeys(GenerateOptions.__annotations__)
    assert sampling_of(**nothing) == SamplingParams()
    assert speculation_of(**nothing) == SpeculationParams()
    given = Options(dict.fromkeys(BatchOptions.__annotations__), BatchOptions)
    assert (given.num_completions(), given.priority(), given.model()) == (1, 0, "")
    assert given.request_id.startswith("req-")


def test_numbers_of_other_libraries_are_numbers():
    given = sampling_of(
        temperature=numpy.float32(0.5), top_k=numpy.int64(3), stop_token_ids=numpy.arange(2)
    )
    assert (given.temperature, given.top_k, given.stop_token_ids) == (0.5, 3, (0, 1))
    assert sampling_of(temperature=1).temperature == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", True), ("temperature", "0.7"), ("temperature", float("nan")),
        ("temperature", 10**400), ("temperature", -1), ("temperature", 0.0001), ("top_p", 0),
        ("top_p", 1.01), ("top_p", [0.9]), ("min_p", -0.1), ("typical_p", 0),
        ("repetition_penalty", 0), ("presence_penalty", 2.1), ("frequency_penalty", float("inf")),
        ("top_k", 1.5), ("top_k", 2.0), ("top_k", True), ("top_k", -2), ("top_k", 2**31),
        ("max_tokens", 0), ("max_tokens", 2.0), ("max_tokens", 2**31), ("max_tokens", True),
        ("min_tokens", -1), ("min_tokens", 257), ("seed", -1), ("seed", 2**64), ("seed", 0.5),
        ("logprobs", 21), ("logprobs", True), ("prompt_logprobs", -1),
        ("ignore_eos", 1), ("include_stop_str_in_output", "yes"),
        ("stop", ["a", 5]), ("stop", b"a"), ("stop", ["s"] * 65), ("bad_words", [""]),
        ("stop_token_ids", [-1]), ("stop_token_ids", [2**32]), ("stop_token_ids", [True]),
        ("stop_token_ids", "ab"), ("stop_token_ids", 5), ("stop_token_ids", [1.5]),
        ("bad_words_ids", [1, 2]), ("bad_words_ids", [[]]), ("bad_words_ids", [[-1]]),
        ("banned_token_ids", {1: 2}), ("allowed_token_ids", [2**32]),
        ("logit_bias", [1, 2]), ("logit_bias", {"a": 1}), ("logit_bias", {-1: 1}),
        ("logit_bias", {1: float("nan")}), ("logit_bias", {1: 101}), ("logit_bias", {1: True}),
        ("priority", 0.5), ("priority", 1001), ("model", 5), ("request_id", 5),
        ("timeout", "10"), ("timeout", float("nan")), ("num_speculative_tokens", 2.5),
        ("num_speculative_tokens", 65), ("speculate", 0), ("regex", 5), ("grammar", ""),
        ("json_schema", "{"), ("json_schema", "[1]"), ("json_schema", [1]), ("json_schema", int),
        ("json_schema", {"a": float("nan")}), ("json_schema", {"a": object()}),
        ("regex", "a" * (MAX_GRAMMAR_LENGTH + 1)),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(field, value):
    for plan in (plan_generate, lambda prompt, options: plan_batch([prompt], options)):
        with pytest.raises(InvalidRequestError) as caught:
            plan("x", {field: value})
        assert caught.value.field == field
        assert caught.value.request_id


@pytest.mark.parametrize("number", [0, 129, True, 1.5, "2"])
def test_the_number_of_sequences_has_bounds(number):
    with pytest.raises(InvalidRequestError) as caught:
        plan_batch(["x"], {"n": number})
    assert caught.value.field == "n"


def test_a_batch_has_a_bound_that_counts_sequences():
    plan_batch(["x"] * 8, {"n": 128})
    with pytest.raises(InvalidRequestError):
        plan_batch(["x"] * 9, {"n": 128})


@pytest.mark.parametrize("plan", [plan_generate, plan_batch])
def test_an_unknown_keyword_is_a_type_error(plan):
    with pytest.raises(TypeError, match="'temprature'"):
        plan("x", {"temprature": None})
    if plan is plan_generate:
        with pytest.raises(TypeError, match="'n'"):
            plan("x", {"n": 2})


def test_a_schema_keeps_its_order():
    text = json.dumps(SCHEMA, separators=(",", ":"))
    assert sampling_of(json_schema=SCHEMA).structured == Grammar(GrammarKind.JSON_SCHEMA, text)
    assert sampling_of(json_schema=' {"a": 1}').structured.text == ' {"a": 1}'


def test_a_model_class_is_a_schema():
    from pydantic import BaseModel

    class Person(BaseModel):
        """Somebody."""

        name: str
        age: int

    given = sampling_of(json_schema=Person).structured
    assert given.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(given.text) == Person.model_json_schema()


def test_regex_and_grammar_are_handed_on_as_they_are():
    assert sampling_of(regex="[0-9]+").structured == Grammar(GrammarKind.REGEX, "[0-9]+")
    assert sampling_of(grammar="start: A").structured == Grammar(GrammarKind.LARK, "start: A")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"json_schema": SCHEMA, "regex": "a"}, "regex"),
        ({"grammar": "start: A", "regex": "a"}, "grammar"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"allowed_token_ids": [1], "banned_token_ids": [1, 2]}, "banned_token_ids"),
        ({"speculate": False, "num_speculative_tokens": 3}, "speculate"),
        ({"speculate": True, "num_speculative_tokens": 0}, "speculate"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ],
)
def test_contradictions_are_refused(options, field):
    with pytest.raises(InvalidRequestError) as caught:
        plan_generate("x", options)
    assert caught.value.field == field


def test_bounds_of_whole_numbers_are_told_in_full():
    with pytest.raises(InvalidRequestError) as caught:
        sampling_of(seed=2**64)
    told = "seed must be 0 to 18446744073709551615, got 18446744073709551616"
    assert caught.value.message == told


def test_speculation_may_be_switched_off_by_a_word():
    assert speculation_of(speculate=False) == SpeculationParams(0)
    assert speculation_of(speculate=True) == SpeculationParams()
    assert speculation_of(num_speculative_tokens=4) == SpeculationParams(4)


def test_the_readme_lists_every_keyword():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    section = readme.partition("### What a request can ask for")[2].partition("\n### ")[0]
    listed = set(re.findall(r"`([a-z_]+)(?:=\w+)?`", section))
    assert set(BatchOptions.__annotations__) <= listed
