"""What callers write as values of the right type; anything else is refused, by its field's name.

Types and what a message can carry are judged here, bounds by `exspec.core.params`. Pure.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import SupportsFloat, SupportsIndex, TypeVar, cast

from exspec.core.choosing import Grammar, GrammarKind
from exspec.core.errors import InvalidRequestError
from exspec.core.params import MAX_GRAMMAR_LENGTH
from exspec.wire.convert_prompt import check_num_ids

JsonSchema = str | Mapping[str, object] | type
"""A JSON schema as a mapping, as JSON text, or as the pydantic model class that has it."""

R = TypeVar("R")

MAX_TOKEN_ID = 2**32 - 1
MAX_COUNT = 2**31 - 1
_NO_LISTS = (str, bytes, Mapping)


def whole(field: str, value: object) -> int:
    """A whole number; a bool or a fraction is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _wrong(field, "a whole number", value)
    return operator.index(value)


def count(field: str, value: object) -> int:
    """A whole number of at most 2^31 - 1."""
    number = whole(field, value)
    if number > MAX_COUNT:
        raise InvalidRequestError(f"{field} must be at most {MAX_COUNT}, got {number}", field=field)
    return number


def number(field: str, value: object) -> float:
    """A number; a bool, text or NaN is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat | SupportsIndex):
        raise _wrong(field, "a number", value)
    try:
        converted = float(value)
    except OverflowError:
        converted = math.inf
    if math.isnan(converted):
        raise _wrong(field, "a number", value)
    return converted


def flag(field: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _wrong(field, "True or False", value)
    return value


def text(field: str, value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(field, "text", value)
    return value


def texts(field: str, value: object) -> tuple[str, ...]:
    """A string, or several."""
    return (value,) if isinstance(value, str) else _each(field, value, text)


def token_ids(field: str, value: object) -> tuple[int, ...]:
    """Token ids, each of 32 bits."""
    check_num_ids(field, operator.length_hint(value))
    return _each(field, value, _token_id)


def token_sequences(field: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Lists of token ids."""
    return _each(field, value, token_ids)


def bias(field: str, value: object) -> tuple[tuple[int, float], ...]:
    """Numbers by token id."""
    if not isinstance(value, Mapping):
        raise _wrong(field, "a mapping from token ids to numbers", value)
    pairs = cast("Mapping[object, object]", value)
    return tuple((_token_id(field, key), number(field, item)) for key, item in pairs.items())


def json_schema(field: str, value: object) -> Grammar:
    """A grammar from a schema: the text that was given, or the mapping's, its order kept."""
    make = cast("object", getattr(value, "model_json_schema", None))
    schema = cast("Callable[[], object]", make)() if callable(make) else value
    try:
        if isinstance(schema, str):
            parsed, written = cast("object", json.loads(schema)), schema
        else:
            parsed, written = schema, _json_text(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{field} is not valid JSON: {error}", field=field) from error
    if not isinstance(parsed, Mapping):
        raise _wrong(field, "a JSON object", parsed)
    return _grammar(field, GrammarKind.JSON_SCHEMA, written)


def regex(field: str, value: object) -> Grammar:
    """A grammar from a regular expression."""
    return _grammar(field, GrammarKind.REGEX, text(field, value))


def lark(field: str, value: object) -> Grammar:
    """A grammar in the Lark notation."""
    return _grammar(field, GrammarKind.LARK, text(field, value))


def _json_text(schema: object) -> str:
    if isinstance(schema, Mapping):
        schema = dict(cast("Mapping[object, object]", schema))
    return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _grammar(field: str, kind: GrammarKind, written: str) -> Grammar:
    if not 1 <= len(written) <= MAX_GRAMMAR_LENGTH:
        raise InvalidRequestError(
            f"{field} must have 1 to {MAX_GRAMMAR_LENGTH} characters, got {len(written)}",
            field=field,
        )
    return Grammar(kind, written)


def _token_id(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidRequestError(f"{field} must hold whole numbers, got {value!r}", field=field)
    token_id = operator.index(value)
    if not 0 <= token_id <= MAX_TOKEN_ID:
        raise InvalidRequestError(f"{field} must hold token ids, got {token_id}", field=field)
    return token_id


def _each(field: str, value: object, read: Callable[[str, object], R]) -> tuple[R, ...]:
    if not isinstance(value, Iterable) or isinstance(value, _NO_LISTS):
        raise _wrong(field, "a list", cast("object", value))
    return tuple(read(field, item) for item in cast("Iterable[object]", value))


def _wrong(field: str, wanted: str, value: object) -> InvalidRequestError:
    shown = repr(value) if isinstance(value, int | float) else type(value).__name__
    return InvalidRequestError(f"{field} must be {wanted}, got {shown}", field=field)
