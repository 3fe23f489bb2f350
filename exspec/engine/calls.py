"""What rank 0 tells the other ranks to do, as a flat list of integers, and back. Pure.

Numbers only: nothing that arrives from another process is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exspec.core.errors import ProtocolError
from exspec.engine.rows import RowInput

_STOP, _FORWARD, _RELEASE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker ends in good order."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A pass over these rows."""

    rows: tuple[RowInput, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The slot is free."""

    slot: int


Call = Stop | Forward | Release


def encode(call: Call) -> list[int]:
    """The call's number, then what it needs."""
    match call:
        case Stop():
            return [_STOP]
        case Release(slot):
            return [_RELEASE, slot]
        case Forward(rows):
            return [_FORWARD, len(rows), *(number for row in rows for number in _encode_row(row))]


def decode(numbers: Sequence[int]) -> Call:
    """The call that was encoded.

    Raises:
        ProtocolError: the numbers are no call.
    """
    match list(numbers):
        case [0]:
            return Stop()
        case [2, slot]:
            return Release(slot)
        case [1, num_rows, *rest]:
            return Forward(_decode_rows(rest, num_rows))
    raise ProtocolError(f"{len(numbers)} numbers from rank 0 are no call")


def _encode_row(row: RowInput) -> list[int]:
    """Without its rules, and of its scored tokens the number: rank 0 alone looks at logits."""
    return [
        row.slot,
        row.start,
        row.num_choices,
        len(row.tokens),
        len(row.scored),
        *row.tokens,
    ]


def _decode_rows(numbers: Sequence[int], num_rows: int) -> tuple[RowInput, ...]:
    rest = iter(numbers)
    rows = [_decode_row(rest) for _ in range(num_rows)]
    if next(rest, None) is not None:
        raise ProtocolError("a pass from rank 0 is longer than its rows")
    return tuple(rows)


def _decode_row(rest: Iterator[int]) -> RowInput:
    slot, start, num_choices, num_tokens, num_scored = _take(rest, 5)
    tokens = _take(rest, num_tokens)
    if num_scored > num_tokens:
        raise ProtocolError("a row from rank 0 scores more tokens than it has")
    return RowInput(slot, start, tokens, num_choices, scored=(0,) * num_scored)


def _take(rest: Iterator[int], number: int) -> tuple[int, ...]:
    taken = tuple(value for _, value in zip(range(number), rest, strict=False))
    if len(taken) != number:
        raise ProtocolError("a pass from rank 0 is shorter than its rows")
    return taken
