"""Lists as they are given on a command line, turned into values. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exspec.core.errors import InvalidRequestError

LAYOUTS = ("slots", "padded")
DRAFT_WEIGHTS = ("auto", "int8", "bfloat16", "full", "modules")
POLICIES = ("eqspec", "exspec", "eqspec-static", "exspec-paper")


def numbers_of(name: str, text: str) -> tuple[int, ...]:
    """Positive whole numbers with commas between them."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise _not_numbers(name, text, "positive numbers")
    return numbers


def counts_of(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers, 0 among them, with commas between them."""
    numbers = decimals_of(name, text)
    if any(number != int(number) for number in numbers):
        raise _not_numbers(name, text, "whole numbers")
    return tuple(map(int, numbers))


def decimals_of(name: str, text: str) -> tuple[float, ...]:
    """Numbers that are not negative, with commas between them."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 <= number < math.inf for number in numbers):
        raise _not_numbers(name, text, "numbers of 0 or more")
    return numbers


def layouts_of(text: str) -> tuple[str, ...]:
    """Known layouts with commas between them."""
    layouts = tuple(part.strip() for part in text.split(","))
    for layout in layouts:
        if layout not in LAYOUTS:
            raise InvalidRequestError(
                f"unknown layout {layout!r}, expected {' or '.join(LAYOUTS)}", field="layouts"
            )
    return layouts


def policies_of(text: str) -> tuple[str, ...]:
    """Known scheduling policies with commas between them."""
    policies = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for policy in policies:
        _require_policy(policy, "policies")
    return policies


def speculations_of(texts: Sequence[str], policies: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Per policy the settings it is run with.

    Every text is [POLICY=]K,K,…; one without a policy is for all that have none of their own. What
    a K may be is the coordinator's business; commas inside of brackets do not separate.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        policy, equals, rest = text.partition("=")
        if equals:
            _require_policy(policy.strip(), "speculation")
        settings = tuple(part.strip() for part in _split(rest if equals else text))
        if not all(settings):
            raise InvalidRequestError(
                f"--speculation takes [POLICY=]K,K,…, got {text!r}", field="speculation"
            )
        found[policy.strip() if equals else ""] = settings
    missing = [policy for policy in policies if policy not in found and "" not in found]
    if missing:
        raise InvalidRequestError(
            f"--speculation says nothing about {', '.join(missing)}", field="speculation"
        )
    return {policy: found.get(policy) or found[""] for policy in policies}


def _not_numbers(name: str, text: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"--{name.replace('_', '-')} takes {what} with commas, got {text!r}", field=name
    )


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _require_policy(policy: str, field: str) -> None:
    if policy not in POLICIES:
        raise InvalidRequestError(
            f"unknown policy {policy!r}, expected one of {', '.join(POLICIES)}", field=field
        )


def weights_of(text: str) -> str:
    """What draft models are told of their weights."""
    if text not in DRAFT_WEIGHTS:
        raise InvalidRequestError(
            f"unknown draft weights {text!r}, expected one of {', '.join(DRAFT_WEIGHTS)}",
            field="draft_weights",
        )
    return text
