"""Recorded traces replay unchanged, and a change of behaviour is shown at its first line."""

from __future__ import annotations

import io
import json

import pytest
from scheduler_random import TRACES, run_random

from coordinator.scheduler.commands import Release
from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.events import SequenceArrived, WorkerJoined, WorkerLost
from coordinator.scheduler.replay import (
    Recorder,
    ReplayError,
    decode,
    encode,
    replay,
    replay_lines,
)
from coordinator.scheduler.rows import SchedulerError
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role

TRACE = TRACES / "eqspec-faults.jsonl"


@pytest.mark.parametrize("path", sorted(TRACES.glob("eqspec*.jsonl")), ids=lambda path: path.name)
def test_recorded_traces_replay(path):
    replay(path)


def test_the_trace_is_worth_replaying():
    lines = [json.loads(line) for line in TRACE.read_text(encoding="utf-8").splitlines()]
    seen = {line["event"]["type"] for line in lines[1:]}
    ordered = {command["type"] for line in lines[1:] for command in line["commands"]}
    assert len(lines) > 200
    assert len(seen) == 9
    assert ordered == {"Draft", "Verify", "Release"}


def test_a_change_of_behaviour_is_found(monkeypatch):
    choose = EqSpec.next_verify

    def reversed_rows(self, target, limits):
        rows = choose(self, target, limits)
        return rows and rows[::-1]

    monkeypatch.setattr(EqSpec, "next_verify", reversed_rows)
    with pytest.raises(ReplayError, match=r"line \d+: .*\nrecorded: .*\nnow: "):
        replay(TRACE)


def test_what_is_recorded_replays():
    stream = io.StringIO()
    run_random(seed=5, num_steps=40, stream=stream)
    replay_lines(stream.getvalue().splitlines())


def test_refused_events_are_recorded_and_replay():
    stream = io.StringIO()
    recorder = Recorder(Scheduler(EqSpec(), SchedulerLimits(), 7), stream, first_batch_id=7)
    recorder.handle(WorkerJoined("t", Role.TARGET, 1, 100))
    with pytest.raises(SchedulerError):
        recorder.handle(WorkerLost("x"))
    (command,) = recorder.handle(SequenceArrived("a", 3, 9))
    assert command.batch_id == 7
    lines = stream.getvalue().splitlines()
    assert json.loads(lines[2])["error"] == "worker x is not a member"
    replay_lines(lines)
    with pytest.raises(ReplayError, match="line 3"):
        replay_lines([*lines[:2], lines[2].replace("not a member", "a stranger")])


def test_values_survive_the_codec():
    for value in (WorkerJoined("t", Role.TARGET, 1, 2), Release("t", ("a", "b")), None, (1, "x")):
        assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize("text", ["", '{"version":0,"policy":"eqspec"}', '{"version":1}'])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(ValueError, match="trace"):
        replay_lines(text.splitlines())


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match="unknown type"):
        decode({"type": "Path"})
    with pytest.raises(TypeError, match="cannot record"):
        encode(object())
