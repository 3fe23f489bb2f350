"""Messages nobody should send, drawn from a seed: odd values, wrong bytes. Pure.

Three levels: a plausible message, one with wild values in it, and bytes that are no message at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle, islice
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

INTEGERS = (
    0,
    1,
    2,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -(2**31),
)
DOUBLES = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324)
STRINGS = (
    "",
    "\0",
    "x" * 129,
    "ü" * 10_000,
    "💥" * 300,
    "\u202e\ufeff",
    "{{ 7 * 7 }}",
    "a" * 50_000,
)
LONG_LIST = 100_000
MANY_MESSAGES = 20_000
MOST_BYTES = 2**21
"""Of copies: what is larger than a server takes tries nothing of ours."""
BYTES_PER_LENGTH = 10
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "address": ("127.0.0.1:1", "localhost:2"),
    "batch_id": (1, 2, 3),
    "content": ("Hello", "What is new?"),
    "ids": (5, 17, 99, 250),
    "incarnation": ("",),
    "max_tokens": (1, 5, 30),
    "model": ("", "target"),
    "num_draft_tokens": (0, 1, 5),
    "num_slots": (1, 4),
    "role": ("user", "system"),
    "round_index": (0, 1, 2),
    "epoch": (0, 1),
    "sequence_id": ("fuzz-1", "fuzz-2", "fuzz-3", "fuzz-4"),
    "start": (0, 0, 0, 1),
    "stop": ("stop",),
    "stop_token_ids": (0, 1, 5),
    "temperature": (0.0, 0.7, 1.0),
    "text": ("Hello", "a prompt"),
    "token_ids": (5, 17, 99, 250),
    "tokens": (5, 17, 99, 250),
    "draft_tokens": (5, 17, 99, 250),
    "top_k": (0, 5),
    "top_p": (1.0, 0.9),
    "worker_id": ("fuzz-worker",),
}
"""By field name; what has no entry gets a small number or a short text."""

RARE = frozenset({"allowed_token_ids", "logit_bias", "resume", "resumes", "structured"})
"""Fields that are mostly refused for what they say: with them no message would come far."""


class Fuzzer:
    """Draws messages. Owns nothing but its source of chance."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self, descriptor: Descriptor) -> bytes:
        """The bytes of one message of that type, or of none."""
        wildness = self._random.choice([0.0, 0.0, 0.05, 0.3])
        made: Message = GetMessageClass(descriptor)()
        self._fill(made, wildness)
        raw = made.SerializeToString()
        for _ in range(self._random.choice([0, 0, 0, 1, 1, 3])):
            raw = self._mutated(raw)
        return raw

    def _fill(self, message: Message, wildness: float) -> None:
        chosen = {
            oneof.name: self._random.choice(oneof.fields).name
            for oneof in message.DESCRIPTOR.oneofs
        }
        for field in message.DESCRIPTOR.fields:
            oneof = field.containing_oneof
            if oneof is not None and chosen[oneof.name] != field.name:
                continue
            absent = 0.3 if wildness else 0.05
            if self._random.random() < (0.8 if field.name in RARE else absent):
                continue
            if field.is_repeated:
                self._fill_list(getattr(message, field.name), field, wildness)
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self._fill(getattr(message, field.name), wildness)
            else:
                setattr(message, field.name, self._scalar(field, wildness))

    def _fill_list(self, values: Any, field: FieldDescriptor, wildness: float) -> None:
        is_long = self._random.random() < wildness / 10
        if field.message_type is None:
            drawn = [
                self._scalar(field, wildness) for _ in range(self._random.choice([0, 1, 3, 12]))
            ]
            values.extend(
                islice(cycle(drawn), LONG_LIST) if is_long and _is_small(drawn) else drawn
            )
            return
        for _ in range(self._random.choice([0, 1, 1, 2, 4])):
            self._fill(values.add(), wildness)
        if is_long and values:
            num_copies = min(MANY_MESSAGES, MOST_BYTES // (1 + values[0].ByteSize()))
            values.extend([values[0]] * num_copies)

    def _scalar(self, field: FieldDescriptor, wildness: float) -> Any:
        random = self._random
        is_wild = random.random() < wildness
        if not is_wild and field.name in PLAUSIBLE and field.enum_type is None:
            return random.choice(PLAUSIBLE[field.name])
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.3
        if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice([0, 1, 33, 1000]) if is_wild else 32)
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return random.choice(STRINGS) if is_wild else f"fuzz-{random.randrange(5)}"
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice(DOUBLES) if is_wild else random.random()
        low, high = _BOUNDS[field.cpp_type]
        return min(high, max(low, random.choice(INTEGERS))) if is_wild else random.randrange(3)

    def _mutated(self, raw: bytes) -> bytes:
        mutations: list[Callable[[bytes], bytes]] = [
            self._flip, self._truncate, self._splice, self._append_varint, self._append_unknown,
            self._noise,
        ]  # fmt: skip
        return self._random.choice(mutations)(raw)

    def _flip(self, raw: bytes) -> bytes:
        flipped = bytearray(raw or b"\0")
        for _ in range(self._random.choice([1, 1, 8])):
            flipped[self._random.randrange(len(flipped))] ^= 1 << self._random.randrange(8)
        return bytes(flipped)

    def _truncate(self, raw: bytes) -> bytes:
        return raw[: self._random.randrange(len(raw) + 1)]

    def _splice(self, raw: bytes) -> bytes:
        start, end = sorted(self._random.randrange(len(raw) + 1) for _ in range(2))
        return raw[:end] + raw[start:]

    def _append_varint(self, raw: bytes) -> bytes:
        """A field whose value or length is up to 2 to the 64."""
        tag = self._random.randrange(1, 20) << 3 | self._random.choice([0, 2])
        return raw + bytes([tag & 0x7F]) + b"\xff" * (BYTES_PER_LENGTH - 1) + b"\x01"

    def _append_unknown(self, raw: bytes) -> bytes:
        return raw + b"\xfa\x3f\x05fuzzy" * self._random.choice([1, 1000])

    def _noise(self, raw: bytes) -> bytes:
        return self._random.randbytes(self._random.choice([1, 10, 1000]))


def _is_small(values: list[Any]) -> bool:
    """Whether they are numbers, or short texts: those may be repeated as often as one likes."""
    return all(not isinstance(value, str) or len(value) < BYTES_PER_LENGTH for value in values)
