"""Everything a scheduler remembers, as comparable values: nothing may change on a refusal."""

from __future__ import annotations

from enum import Enum

_ATOMS = (str, int, float, bool, type(None), Enum)


def snapshot(scheduler):
    """All of it, reached from the scheduler itself; the same object is numbered once."""
    return _flat(scheduler, {})


def _flat(value, seen: dict[int, int]):
    if isinstance(value, _ATOMS):
        return value
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return type(value).__name__, [
        (_flat(name, seen), _flat(item, seen)) for name, item in _items_of(value)
    ]


def _items_of(value):
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    return [(name, getattr(value, name)) for name in (*slots, *getattr(value, "__dict__", ()))]
