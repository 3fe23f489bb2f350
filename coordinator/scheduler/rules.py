"""Speculation rules from text, as the setting gives them. Parsing only."""

from __future__ import annotations

import json
from typing import cast

from coordinator.scheduler.adaptive import AdaptiveSpeculation
from coordinator.scheduler.speculation import (
    FixedSpeculation,
    SpeculationRule,
    TableSpeculation,
)
from exspec.core.params import MAX_SPECULATIVE_TOKENS

AUTO = "auto"
HELP = (
    f'"auto", "auto:K" (at most K), a number from 0 to {MAX_SPECULATIVE_TOKENS}, or a table of '
    "[from rows, to rows, K] such as [[1,4,5],[5,16,2]]"
)


def speculation_rule(text: str) -> SpeculationRule:
    """The rule a text stands for.

    Raises:
        ValueError: it stands for none; the message says what may be written.
    """
    stripped = text.strip()
    if stripped == AUTO:
        return AdaptiveSpeculation()
    if stripped.startswith(AUTO + ":"):
        return AdaptiveSpeculation(_number(stripped.removeprefix(AUTO + ":"), stripped))
    if stripped.startswith("["):
        return TableSpeculation(_ranges(stripped))
    return FixedSpeculation(_number(stripped, stripped))


def _number(text: str, whole: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise _wrong(whole) from None
    if not 0 <= number <= MAX_SPECULATIVE_TOKENS:
        raise _wrong(whole)
    return number


def _ranges(text: str) -> tuple[tuple[int, int, int], ...]:
    try:
        table = cast("object", json.loads(text))
    except ValueError:
        raise _wrong(text) from None
    ranges: list[tuple[int, int, int]] = []
    for item in cast("list[object]", table):
        if not isinstance(item, list):
            raise _wrong(text)
        numbers = cast("list[object]", item)
        if len(numbers) != 3 or not all(type(number) is int for number in numbers):
            raise _wrong(text)
        low, high, number = cast("list[int]", numbers)
        last = ranges[-1][1] if ranges else 0
        if not (last < low <= high and 0 <= number <= MAX_SPECULATIVE_TOKENS):
            raise _wrong(text)
        ranges.append((low, high, number))
    if not ranges:
        raise _wrong(text)
    return tuple(ranges)


def _wrong(text: str) -> ValueError:
    return ValueError(f"speculation {text!r} is none of {HELP}")
