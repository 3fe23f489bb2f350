"""JSON to frozen values and back, strictly: an unknown name is refused. No plan is known here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from exspec.core.errors import InvalidRequestError

T = TypeVar("T")


def decode(kind: type[T], value: object, name: str = "plan") -> T:
    """A value of this kind; fields that are not given keep their defaults.

    Raises:
        InvalidRequestError: the value is none, with the place in the message.
    """
    return cast("T", _decode(kind, value, name))


def _decode(kind: object, value: object, name: str) -> object:
    origin = get_origin(kind)
    if origin is UnionType:
        return _decode_optional(kind, value, name)
    if origin is tuple:
        if not isinstance(value, list):
            _refuse(name, "a list", value)
        item = get_args(kind)[0]
        return tuple(
            _decode(item, one, f"{name}[{index}]")
            for index, one in enumerate(cast("list[object]", value))
        )
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_fields(kind, value, name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _decode_enum(kind, value, name)
    return _decode_plain(cast("object", kind), value, name)


def _decode_optional(kind: object, value: object, name: str) -> object:
    """`X | None` is the only union that plans know."""
    if value is None:
        return None
    (inner,) = (one for one in get_args(kind) if one is not NoneType)
    return _decode(inner, value, name)


def _decode_fields(kind: type[object], value: object, name: str) -> object:
    if not isinstance(value, Mapping):
        _refuse(name, "an object", value)
    given = cast("Mapping[str, object]", value)
    hints = get_type_hints(kind)
    unknown = sorted(set(given) - set(hints))
    if unknown:
        raise InvalidRequestError(f"{name}: unknown {', '.join(unknown)}", field=name)
    for field in fields(cast("type", kind)):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in given:
            raise InvalidRequestError(f"{name}: {field.name} is missing", field=name)
    build = cast("Callable[..., object]", kind)
    return build(**{key: _decode(hints[key], one, f"{name}.{key}") for key, one in given.items()})


def _decode_enum(kind: type[Enum], value: object, name: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        _refuse(name, " or ".join(str(one.value) for one in kind), value)


def _decode_plain(kind: object, value: object, name: str) -> object:
    """Text and numbers; a whole number is a number, a truth value is none."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(kind, type) or type(value) is not kind:
        _refuse(name, f"a {getattr(kind, '__name__', kind)}", value)
    return value


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    raise InvalidRequestError(f"{name}: expected {expected}, got {value!r}", field=name)
