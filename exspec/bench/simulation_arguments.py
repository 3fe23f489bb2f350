"""Command-line texts of a simulation turned into values, and traces read from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from exspec.bench.simulation import Document
from exspec.core.errors import InvalidRequestError

TRACE = "trace:"
CHANGE_PARTS = (3, 4)


def counts_of(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers from 0, with commas between them."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        _refuse(name, "numbers from 0 with commas", text)
    return numbers


def milliseconds_of(name: str, text: str | None) -> tuple[float | None, ...]:
    """Durations with commas between them; nothing: one that is not given."""
    if text is None:
        return (None,)
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = (-1.0,)
    if not all(0 <= number < float("inf") for number in numbers):
        _refuse(name, "durations with commas", text)
    return numbers


def costs_of(text: str) -> str | Document:
    """The name of a preset, or the coefficients in a JSON file."""
    if not text.endswith(".json"):
        return text
    try:
        costs = json.loads(_text_of("preset", text))
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"{text} is not JSON: {error}", field="preset") from error
    if not isinstance(costs, dict):
        raise InvalidRequestError(f"{text} holds no object", field="preset")
    return costs


def changes_of(texts: Sequence[str]) -> tuple[Document, ...]:
    """ "SECONDS:KIND:WORKER" or "SECONDS:KIND:WORKER:FACTOR" each."""
    return tuple(_change_of(text) for text in texts)


def trace_of(arrivals: str) -> tuple[Document, ...]:
    """The requests of "trace:FILE" (JSON lines), by time; none for other arrivals."""
    if not arrivals.startswith(TRACE):
        return ()
    name = arrivals.removeprefix(TRACE)
    entries = []
    for number, line in enumerate(_text_of("arrivals", name).splitlines(), start=1):
        if line.strip():
            entries.append(_entry_of(line, f"{name}, line {number}"))
    if not entries:
        raise InvalidRequestError(f"{name} holds no requests", field="arrivals")
    return tuple(sorted(entries, key=lambda entry: entry["arrival_seconds"]))


def _entry_of(line: str, place: str) -> Document:
    try:
        entry = json.loads(line)
        float(entry["arrival_seconds"])
    except (ValueError, KeyError, TypeError):
        raise InvalidRequestError(
            f"{place}: expected an object with arrival_seconds, prompt_tokens and output_tokens",
            field="arrivals",
        ) from None
    return entry


def _change_of(text: str) -> Document:
    parts = text.split(":")
    try:
        numbers = [float(part) for part in (parts[0], *parts[3:])]
    except ValueError:
        numbers = []
    if len(parts) not in CHANGE_PARTS or not numbers:
        _refuse("change", "SECONDS:KIND:WORKER[:FACTOR]", text)
    factor = {"factor": numbers[1]} if len(numbers) > 1 else {}
    return {"at_seconds": numbers[0], "kind": parts[1], "worker": parts[2], **factor}


def _text_of(field: str, name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{name} cannot be read: {error}", field=field) from error


def _refuse(name: str, expected: str, text: str) -> NoReturn:
    raise InvalidRequestError(
        f"--{name.replace('_', '-')} takes {expected}, got {text!r}", field=name
    )
