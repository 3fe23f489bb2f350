"""Every phase meets every event: a move of the table, or `SchedulerError` and nothing changed."""

from __future__ import annotations

import pytest
from scheduler_bench import Bench, snapshot

from coordinator.scheduler.commands import Draft, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    SequenceArrived,
    SequenceCancelled,
    VerifyCompleted,
    VerifyFailed,
    VerifyOutcome,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from coordinator.scheduler.rows import MOVES, Phase, SchedulerError
from coordinator.scheduler.state import State
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

OK = EntryStatus.OK
W, WD, D, WV, V, F = Phase
GONE = None
ERROR = "error"


def bench_in(phase: Phase) -> Bench:
    """Row "a" in that phase; where it has homes they are "t" and "d". No other target has room."""
    bench = Bench(targets=(), drafts=("d",))
    if phase is WV:
        bench.join("t", Role.TARGET, num_slots=2)
        bench.arrive("b")
        bench.arrive("a")
    elif phase is W:
        bench.join("t", Role.TARGET, num_slots=1)
        bench.arrive("b")
        bench.arrive("a")
    else:
        bench.join("t", Role.TARGET, num_slots=1)
        bench.join("t2", Role.TARGET, num_slots=1)
        bench.arrive("a")
        bench.arrive("b")
    if phase is WD:
        bench.verified("t2")
        bench.verified("t")
    elif phase is D:
        bench.verified("t")
    elif phase is F:
        bench.cancel("a")
    assert bench.scheduler.phase_of("a") is phase
    return bench


def batch_id_of(bench: Bench, kind) -> int:
    """The batch in flight that holds "a", or one that nobody has in flight."""
    for command in bench.flights.values():
        names = [order.key.sequence_id for order in command.orders]
        if isinstance(command, kind) and "a" in names:
            return command.batch_id
    return 999


EVENTS = {
    "new target": lambda bench: WorkerJoined("t9", Role.TARGET, 8, 1000),
    "known worker": lambda bench: WorkerJoined("d", Role.DRAFT, 8, 1000),
    "useless worker": lambda bench: WorkerJoined("t9", Role.TARGET, 0, 1000),
    "target drains": lambda bench: WorkerDraining("t"),
    "draft drains": lambda bench: WorkerDraining("d"),
    "stranger drains": lambda bench: WorkerDraining("x"),
    "target lost": lambda bench: WorkerLost("t"),
    "draft lost": lambda bench: WorkerLost("d"),
    "stranger lost": lambda bench: WorkerLost("x"),
    "arrives again": lambda bench: SequenceArrived("a", 10, 100),
    "another arrives": lambda bench: SequenceArrived("c", 10, 100),
    "full one arrives": lambda bench: SequenceArrived("c", 10, 10),
    "one with a negative K arrives": lambda bench: SequenceArrived("c", 10, 100, -1),
    "cancelled": lambda bench: SequenceCancelled("a"),
    "stranger cancelled": lambda bench: SequenceCancelled("x"),
    "drafted": lambda bench: DraftCompleted(
        "d", batch_id_of(bench, Draft), (DraftOutcome("a", OK, 5, 11),)
    ),
    "draft failed": lambda bench: DraftFailed("d", batch_id_of(bench, Draft)),
    "verified": lambda bench: VerifyCompleted(
        "t", batch_id_of(bench, Verify), (VerifyOutcome("a", OK, 1, 10),)
    ),
    "finished": lambda bench: VerifyCompleted(
        "t", batch_id_of(bench, Verify), (VerifyOutcome("a", OK, 1, 10, True),)
    ),
    "verify failed": lambda bench: VerifyFailed("t", batch_id_of(bench, Verify)),
    "verified by a draft worker": lambda bench: VerifyFailed("d", batch_id_of(bench, Draft)),
    "drafted by a target": lambda bench: DraftFailed("t", batch_id_of(bench, Verify)),
    "another row's outcome": lambda bench: VerifyCompleted(
        "t", batch_id_of(bench, Verify), (VerifyOutcome("b", OK, 1, 10),)
    ),
}

# Phase after the event and the orders it leads to, for "a" in each phase of the head line.
SAME = (W, WD, D, WV, V, F)
NEVER = (ERROR,) * 6
EXPECTED = {
    #               WAITING WANTS_DRAFT DRAFTING WANTS_VERIFY VERIFYING FINISHED
    "new target": (V, WD, D, WV, V, F),
    "known worker": NEVER,
    "useless worker": NEVER,
    "target drains": (W, W, D, W, V, F),
    "draft drains": (W, V, D, WV, V, F),
    "stranger drains": NEVER,
    "target lost": (W, W, D, W, W, GONE),
    "draft lost": (W, V, V, WV, V, F),
    "stranger lost": NEVER,
    "arrives again": NEVER,
    "another arrives": SAME,
    "full one arrives": NEVER,
    "one with a negative K arrives": NEVER,
    "cancelled": (GONE, GONE, F, GONE, F, F),
    "stranger cancelled": SAME,
    "drafted": (ERROR, ERROR, V, ERROR, ERROR, ERROR),
    "draft failed": (ERROR, ERROR, V, ERROR, ERROR, ERROR),
    "verified": (ERROR, ERROR, ERROR, ERROR, D, GONE),
    "finished": (ERROR, ERROR, ERROR, ERROR, GONE, GONE),
    "verify failed": (ERROR, ERROR, ERROR, ERROR, V, GONE),
    "verified by a draft worker": NEVER,
    "drafted by a target": NEVER,
    "another row's outcome": NEVER,
}


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("name", EVENTS)
def test_every_phase_meets_every_event(name, phase):
    bench = bench_in(phase)
    event = EVENTS[name](bench)
    expected = EXPECTED[name][list(Phase).index(phase)]
    before = snapshot(bench.scheduler)
    if expected is ERROR:
        with pytest.raises(SchedulerError):
            bench.scheduler.handle(event)
        assert snapshot(bench.scheduler) == before
    else:
        bench.tell(event)
        assert bench.scheduler.phase_of("a") is expected


def test_the_tables_are_complete():
    assert set(EVENTS) == set(EXPECTED)
    assert set(MOVES) == set(Phase)


@pytest.mark.parametrize("old", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("new", Phase, ids=lambda phase: phase.value)
def test_moves_are_those_of_the_table(old, new):
    state = State()
    state.arrive(SequenceArrived("a", 1, 2))
    row = state.rows["a"]
    for step in {W: (), WV: (WV,), V: (WV, V), WD: (WV, V, WD), D: (WV, V, WD, D), F: (F,)}[old]:
        state.move(row, step)
    if new in MOVES[old]:
        state.move(row, new)
        assert row.phase is new
        assert state.num_rows_in[new] == 1
    else:
        with pytest.raises(SchedulerError):
            state.move(row, new)
        assert row.phase is old
        assert state.num_rows_in[old] == 1


IMPOSSIBLE_VERIFIES = {
    "nothing committed": VerifyOutcome("a", OK, 0, 10),
    "more than K + 1": VerifyOutcome("a", OK, 2, 10),
    "negative": VerifyOutcome("a", OK, -1, 10),
    "holds more than the log": VerifyOutcome("a", OK, 1, 12),
    "holds less than nothing": VerifyOutcome("a", EntryStatus.LACKS_TOKENS, 0, -1),
    "refused but committed": VerifyOutcome("a", EntryStatus.FAILED, 1, 0),
    "refused but finished": VerifyOutcome("a", EntryStatus.FAILED, 0, 0, True),
}


@pytest.mark.parametrize("outcome", IMPOSSIBLE_VERIFIES.values(), ids=IMPOSSIBLE_VERIFIES.keys())
def test_an_impossible_verify_outcome_changes_nothing(outcome):
    bench = Bench()
    bench.arrive("b")  # verified beside it, and must not be touched either
    bench.arrive("a")
    bench.verified()
    bench.drafted()
    batch = bench.flights["t"]
    assert [order.key.sequence_id for order in batch.orders] == ["b", "a"]
    good = VerifyOutcome("b", OK, 1, 11)
    before = snapshot(bench.scheduler)
    with pytest.raises(SchedulerError):
        bench.scheduler.handle(VerifyCompleted("t", batch.batch_id, (good, outcome)))
    assert snapshot(bench.scheduler) == before


def test_a_full_row_must_be_finished():
    bench = Bench()
    bench.arrive("a", length=10, max_length=11)
    with pytest.raises(SchedulerError, match="impossible"):
        bench.verified()


@pytest.mark.parametrize(
    "outcome",
    [
        DraftOutcome("a", OK, 6, 11),
        DraftOutcome("a", OK, -1, 11),
        DraftOutcome("a", OK, 5, 12),
        DraftOutcome("a", EntryStatus.FAILED, 1, 0),
    ],
    ids=repr,
)
def test_an_impossible_draft_outcome_changes_nothing(outcome):
    bench = bench_in(D)
    before = snapshot(bench.scheduler)
    with pytest.raises(SchedulerError):
        bench.scheduler.handle(DraftCompleted("d", bench.flights["d"].batch_id, (outcome,)))
    assert snapshot(bench.scheduler) == before
