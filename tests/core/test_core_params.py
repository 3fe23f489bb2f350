"""Requests are valid by construction; the error names the field and the bound."""

from __future__ import annotations

import pytest

from exspec.core.errors import CallerError, InvalidRequestError
from exspec.core.generation import GenerationRequest, TextPrompt
from exspec.core.params import (
    DEFAULT_MAX_TOKENS,
    MAX_SPECULATIVE_TOKENS,
    MAX_STOP_STRING_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    SpeculationParams,
)


def test_defaults_are_valid():
    assert SamplingParams().max_tokens == DEFAULT_MAX_TOKENS
    assert SpeculationParams().num_speculative_tokens is None


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 1},
        {"stop": ("x",) * MAX_STOP_STRINGS},
        {"stop": ("x" * MAX_STOP_STRING_LENGTH,)},
        {"stop_token_ids": tuple(range(MAX_STOP_TOKEN_IDS))},
        {"ignore_eos": True},
    ],
)
def test_bounds_are_inclusive(fields):
    SamplingParams(**fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("stop", ("x",) * (MAX_STOP_STRINGS + 1)),
        ("stop", ("ok", "")),
        ("stop", ("x" * (MAX_STOP_STRING_LENGTH + 1),)),
        ("stop_token_ids", tuple(range(MAX_STOP_TOKEN_IDS + 1))),
    ],
)
def test_what_is_out_of_bounds_names_its_field(field, value):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert isinstance(caught.value, CallerError)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("temperature", 100.0001, "100.0001"),
        ("temperature", float("nan"), "nan"),
        ("top_p", 1.0000000000000002, "1.0000000000000002"),
        ("top_p", 0.0, "0"),
        ("min_tokens", 2**32 - 1, "4294967295"),
        ("repetition_penalty", float("inf"), "inf"),
    ],
)
def test_what_is_just_beside_a_bound_is_not_shown_as_the_bound(field, value, shown):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.message.endswith(f", got {shown}")


@pytest.mark.parametrize("number", [None, 0, 1, MAX_SPECULATIVE_TOKENS])
def test_speculation_within_bounds(number):
    assert SpeculationParams(number).num_speculative_tokens == number


@pytest.mark.parametrize("number", [-1, MAX_SPECULATIVE_TOKENS + 1])
def test_speculation_out_of_bounds(number):
    with pytest.raises(InvalidRequestError, match=str(number)) as caught:
        SpeculationParams(number)
    assert caught.value.field == "num_speculative_tokens"


@pytest.mark.parametrize("priority", [-1000, 0, 1000])
def test_priorities_within_bounds(priority):
    assert GenerationRequest(TextPrompt("x"), priority=priority).priority == priority


@pytest.mark.parametrize("priority", [-1001, 1001])
def test_priorities_out_of_bounds_are_named(priority):
    with pytest.raises(InvalidRequestError, match="-1000 to 1000") as caught:
        GenerationRequest(TextPrompt("x"), priority=priority)
    assert caught.value.field == "priority"
