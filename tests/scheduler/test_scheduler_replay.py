"""Recorded traces replay unchanged, and a change of behaviour is shown at its first line."""

from __future__ import annotations

import io
import json

import pytest
from scheduler_random import TRACES, run_random

from coordinator.scheduler.commands import Draft, Release
from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftOutcome,
    PassCost,
    SequenceArrived,
    WorkerJoined,
    WorkerLost,
)
from coordinator.scheduler.policies import POLICIES
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
from exspec.core.rounds import EntryStatus

TRACE_FILES = sorted(TRACES.glob("*-faults.jsonl"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("path", TRACE_FILES, ids=lambda path: path.name)
def test_recorded_traces_replay(path):
    replay(path)


@pytest.mark.parametrize("path", TRACE_FILES, ids=lambda path: path.name)
def test_the_traces_are_worth_replaying(path):
    head, *lines = lines_of(path)
    assert (head["policy"], head["speculation"]) == (path.name.partition("-")[0], "auto")
    seen = {line["event"]["type"] for line in lines}
    commands = [command for line in lines for command in line["commands"]]
    drafted = [
        order["num_draft_tokens"]
        for command in commands
        if command["type"] == "Draft"
        for order in command["orders"]
    ]
    assert len(lines) > 200
    assert len(seen) == 10
    assert {command["type"] for command in commands} == {"Draft", "Verify", "Release"}
    assert len(set(drafted)) >= 3
    assert any(line["event"].get("cost") for line in lines)


def test_traces_of_both_policies_are_there():
    assert [path.name for path in TRACE_FILES] == ["eqspec-faults.jsonl", "exspec-faults.jsonl"]
    limits = lines_of(TRACES / "exspec-faults.jsonl")[0]["limits"]
    assert limits["window_size"] > limits["batch_size"]


def test_a_change_of_behaviour_is_found(monkeypatch):
    choose = EqSpec.next_group

    def reversed_rows(self, target, limits, costs):
        rows = choose(self, target, limits, costs)
        return rows and rows[::-1]

    monkeypatch.setattr(EqSpec, "next_group", reversed_rows)
    with pytest.raises(ReplayError, match=r"line \d+: .*\nrecorded: .*\nnow: "):
        replay(TRACES / "eqspec-faults.jsonl")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_recorded_replays(policy):
    stream = io.StringIO()
    run_random(seed=5, num_steps=40, stream=stream, policy=policy, rule="auto:3")
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
    outcome = DraftOutcome("a", EntryStatus.OK, 1, 2)
    for value in (
        WorkerJoined("t", Role.TARGET, 1, 2, "padded"),
        DraftCompleted("d", 1, (outcome,), PassCost(0.1, 0.2, 0.05)),
        Draft("d", 1, (), 0.25),
        Release("t", ("a", "b")),
        None,
        (1, "x"),
    ):
        assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    "text", ["", '{"version":1,"policy":"eqspec"}', '{"version":2,"policy":"best"}', "{}"]
)
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(ValueError, match="trace"):
        replay_lines(text.splitlines())


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match="unknown type"):
        decode({"type": "Path"})
    with pytest.raises(TypeError, match="cannot record"):
        encode(object())
