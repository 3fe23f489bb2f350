"""Traces: every event with the commands it led to, one JSON object a line, and their replay.

A change that should not change behaviour replays old traces unchanged. Only the codec, the
recorder and the comparison live here; paths and streams are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TextIO, cast

from coordinator.scheduler import commands, events
from coordinator.scheduler.commands import Command
from coordinator.scheduler.events import Event
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.rows import SchedulerError
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler
from exspec.core.alignment import AlignmentPlan
from exspec.core.ids import Role
from exspec.core.rounds import EntryKey, EntryStatus

VERSION = 2

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_TYPES: dict[str, Callable[..., object]] = {
    kind.__name__: kind
    for kind in (
        events.WorkerJoined,
        events.WorkerDraining,
        events.WorkerLost,
        events.RefusalExpired,
        events.SequenceArrived,
        events.SequenceCancelled,
        events.DraftOutcome,
        events.PassCost,
        events.DraftCompleted,
        events.DraftOverdue,
        events.DraftFailed,
        events.VerifyOutcome,
        events.VerifyCompleted,
        events.VerifyFailed,
        commands.DraftOrder,
        commands.Draft,
        commands.VerifyOrder,
        commands.Verify,
        commands.Release,
        SchedulerLimits,
        AlignmentPlan,
        EntryKey,
        EntryStatus,
        Role,
    )
}


class ReplayError(AssertionError):
    """The scheduler now answers an event differently. The message has the first difference."""


class Recorder:
    """A scheduler that writes down what it is told and what it answers."""

    def __init__(self, scheduler: Scheduler, stream: TextIO, first_batch_id: int = 1) -> None:
        self.scheduler = scheduler
        self._stream = stream
        head: dict[str, Json] = {
            "version": VERSION,
            "policy": scheduler.policy.name,
            "speculation": scheduler.rule.text,
            "limits": encode(scheduler.limits),
            "first_batch_id": first_batch_id,
        }
        self._write(head)

    def handle(self, event: Event) -> tuple[Command, ...]:
        """As `Scheduler.handle`; a refused event is recorded as such."""
        try:
            answer = self.scheduler.handle(event)
        except SchedulerError as error:
            self._write({"event": encode(event), "error": error.message})
            raise
        self._write({"event": encode(event), "commands": encode(answer)})
        return answer

    def _write(self, line: dict[str, Json]) -> None:
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")


def replay(path: Path) -> None:
    """Feed a recorded trace to a new scheduler and compare every answer.

    Raises:
        ReplayError: with the line number, the event, what was recorded and what came now.
        ValueError: the file is no trace of this version.
    """
    with path.open(encoding="utf-8") as stream:
        replay_lines(stream)


def replay_lines(lines: Iterable[str]) -> None:
    """As `replay`, for the lines of a trace."""
    scheduler: Scheduler | None = None
    for number, text in enumerate(lines, start=1):
        line = cast("dict[str, Json]", json.loads(text))
        if scheduler is None:
            scheduler = _scheduler_of(line)
            continue
        event = cast("Event", decode(line["event"]))
        now = _answer(scheduler, event)
        recorded = {key: value for key, value in line.items() if key != "event"}
        if now != recorded:
            raise ReplayError(
                f"line {number}: {event}\nrecorded: {_show(recorded)}\nnow:      {_show(now)}"
            )
    if scheduler is None:
        raise ValueError("an empty trace")


def encode(value: object) -> Json:
    """A value as JSON that says its own type."""
    if isinstance(value, Enum):
        return {"type": type(value).__name__, "value": cast("str", value.value)}
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **members}
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[object, ...]", value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot record {value!r}")


def decode(value: Json) -> object:
    """The value that `encode` was given.

    Raises:
        ValueError: for a type that is not known.
    """
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    members = {key: decode(item) for key, item in value.items() if key != "type"}
    build = _TYPES.get(str(value.get("type")))
    if build is None:
        raise ValueError(f"unknown type in a trace: {value.get('type')!r}")
    return build(**members)


def _scheduler_of(head: dict[str, Json]) -> Scheduler:
    policy = POLICIES.get(str(head.get("policy")))
    if head.get("version") != VERSION or policy is None:
        raise ValueError(f"not a trace of version {VERSION}: {head}")
    limits = cast("SchedulerLimits", decode(head["limits"]))
    rule = speculation_rule(str(head["speculation"]))
    return Scheduler(policy(), limits, cast("int", head["first_batch_id"]), rule)


def _answer(scheduler: Scheduler, event: Event) -> dict[str, Json]:
    try:
        return {"commands": encode(scheduler.handle(event))}
    except SchedulerError as error:
        return {"error": error.message}


def _show(answer: dict[str, Json]) -> str:
    return json.dumps(answer)
