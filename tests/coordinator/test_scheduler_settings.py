"""What a coordinator can be told about scheduling: good texts, and what is said of bad ones."""

from __future__ import annotations

import pytest

from coordinator.settings import CoordinatorSettings
from exspec.runtime.settings import load_settings


def _loaded(*argv: str) -> CoordinatorSettings:
    return load_settings(CoordinatorSettings, argv)


@pytest.mark.parametrize(
    "text",
    ["auto", "auto:3", "auto:0", "0", "5", "64", "[[1,4,5]]", "[[1,2,4], [3,8,1], [9,64,0]]"],
)
def test_rules_of_speculation_that_can_be_read(text, monkeypatch):
    assert _loaded("--num-speculative-tokens", text).num_speculative_tokens == text
    monkeypatch.setenv("EXSPEC_NUM_SPECULATIVE_TOKENS", text)
    assert _loaded().num_speculative_tokens == text


def test_the_models_advice_can_be_switched_off(monkeypatch, capsys):
    assert _loaded().generation_config == "auto"
    assert _loaded("--generation-config", "none").generation_config == "none"
    monkeypatch.setenv("EXSPEC_GENERATION_CONFIG", "none")
    assert _loaded().generation_config == "none"
    with pytest.raises(SystemExit):
        _loaded("--generation-config", "file")
    assert "generation" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "-1",
        "65",
        "2.5",
        "auto:x",
        "auto:65",
        "automatic",
        "[]",
        "[[1,4]]",
        "[[1,4,5,6]]",
        "[1,4,5]",
        "[[4,1,5]]",
        "[[0,4,5]]",
        "[[1,4,65]]",
        "[[1,4,-1]]",
        "[[1,4,true]]",
        "[[1,4,5],[4,8,2]]",
        "[[5,8,2],[1,4,5]]",
        "[[1,4,5]",
        '{"1": 5}',
    ],
)
def test_what_is_no_rule_is_refused_and_all_that_may_be_written_is_said(text, capsys):
    with pytest.raises(SystemExit) as caught:
        _loaded("--num-speculative-tokens", text)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert "--num-speculative-tokens:" in message
    for part in (repr(text), '"auto"', '"auto:K"', "0 to 64", "[from rows, to rows, K]"):
        assert part in message


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ("--window-size", "3", "--batch-size", "4"),
            ("window_size must be at least batch_size, 4, got 3",),
        ),
        (("--window-size", "31"), ("window_size must be at least batch_size, 32, got 31",)),
        (
            ("--window-size", "40", "--batch-size", "4", "--max-wait-rounds", "8"),
            ("max_wait_rounds must be at least 9", "window of 40", "batches of 4", "got 8"),
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_names_and_bounds(argv, parts, capsys):
    with pytest.raises(SystemExit) as caught:
        _loaded(*argv)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--window-size", "0"),
        ("--max-batches-in-flight", "0"),
        ("--max-batches-in-flight", "17"),
        ("--max-wait-rounds", "-1"),
        ("--max-prefill-tokens", "0"),
        ("--max-mixed-prefill-tokens", "0"),
        ("--policy", "fifo"),
    ],
)
def test_a_bound_that_is_broken_is_named(flag, value, capsys):
    with pytest.raises(SystemExit) as caught:
        _loaded(flag, value)
    assert caught.value.code == 2
    assert f"{flag}:" in capsys.readouterr().err


def test_what_is_not_said_follows_from_the_batch():
    limits = _loaded("--batch-size", "4").scheduler_limits
    assert (limits.batch_size, limits.window) == (4, 4)
    limits = _loaded("--batch-size", "4", "--window-size", "12").scheduler_limits
    assert (limits.batch_size, limits.window, limits.least_wait_rounds) == (4, 12, 2)
    assert _loaded().policy == "exspec"
    assert _loaded().num_speculative_tokens == "auto"
