"""Every phase meets every event: a move of the table, or `SchedulerError` and nothing changed."""

from __future__ import annotations

from itertools import chain

import pytest
from scheduler_bench import Bench
from scheduler_snapshot import snapshot

from coordinator.scheduler.commands import Draft, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftFailed,
    DraftOutcome,
    DraftOverdue,
    RefusalExpired,
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
W, R, WD, D, WV, V, F = Phase
GONE = None
ERROR = "error"


def bench_in(phase: Phase) -> Bench:
    """Row "a" in that phase; where it has homes they are "t" and "d". No other target has room."""
    bench = Bench(targets=(), drafts=("d",), max_batches_in_flight=1)
    if phase is WV:  # its group waits for the draft of "b"
        bench.arrive("b")
        bench.arrive("a", max_draft_tokens=0)
        bench.join("t", Role.TARGET, num_slots=2)
        bench.verified("t")
    elif phase in (W, R):
        bench.join("t", Role.TARGET, num_slots=1 if phase is W else 2)
        bench.arrive("b")
        bench.arrive("a")
    else:
        bench.join("t", Role.TARGET, num_slots=1)
        bench.join("t2", Role.TARGET, num_slots=1)
        bench.arrive("a")
        bench.arrive("b")
    if phase is WD:  # the draft worker has no room: "b" is there
        bench.verified("t2")
        bench.verified("t")
    elif phase is D:
        bench.verified("t")
    elif phase is F:
        bench.cancel("a")
    assert bench.phase("a") is phase
    return bench


def any_draft(bench: Bench) -> int:
    """The batch in flight at "d", whoever is in it."""
    return bench.flights["d"][0].batch_id if bench.flights["d"] else 999


def batch_id_of(bench: Bench, kind) -> int:
    """The batch in flight that holds "a", or one that nobody has in flight."""
    for command in chain.from_iterable(bench.flights.values()):
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
    "refusal expires": lambda bench: RefusalExpired("t"),
    "a stranger's refusal expires": lambda bench: RefusalExpired("x"),
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
    "draft overdue": lambda bench: DraftOverdue("d", batch_id_of(bench, Draft)),
    "what is drafted is overdue": lambda bench: DraftOverdue("d", any_draft(bench)),
    "a verify overdue": lambda bench: DraftOverdue("t", batch_id_of(bench, Verify)),
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
SAME = (W, R, WD, D, WV, V, F)
NEVER = (ERROR,) * 7
DRAFTING = (ERROR, ERROR, ERROR, V, ERROR, ERROR, ERROR)
EXPECTED = {
    #               WAITING READY WANTS_DRAFT DRAFTING WANTS_VERIFY VERIFYING FINISHED
    "new target": (V, R, WD, D, WV, V, F),
    "known worker": NEVER,
    "useless worker": NEVER,
    "target drains": (W, W, W, W, W, V, F),
    "draft drains": (W, R, V, D, WV, V, F),
    "stranger drains": NEVER,
    "refusal expires": SAME,
    "a stranger's refusal expires": NEVER,
    "target lost": (W, W, W, W, W, W, GONE),
    "draft lost": (W, R, V, V, V, V, F),
    "stranger lost": NEVER,
    "arrives again": NEVER,
    "another arrives": SAME,
    "full one arrives": NEVER,
    "one with a negative K arrives": NEVER,
    "cancelled": (GONE, GONE, GONE, GONE, GONE, F, F),
    "stranger cancelled": SAME,
    "drafted": DRAFTING,
    "draft failed": DRAFTING,
    "draft overdue": DRAFTING,
    "what is drafted is overdue": (ERROR, ERROR, V, V, V, ERROR, ERROR),
    "a verify overdue": NEVER,
    "verified": (ERROR, ERROR, ERROR, ERROR, ERROR, D, GONE),
    "finished": (ERROR, ERROR, ERROR, ERROR, ERROR, GONE, GONE),
    "verify failed": (ERROR, ERROR, ERROR, ERROR, ERROR, V, GONE),
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
        assert bench.phase("a") is expected


def test_the_tables_are_complete():
    assert set(EVENTS) == set(EXPECTED)
    assert set(MOVES) == set(Phase)


@pytest.mark.parametrize("old", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("new", Phase, ids=lambda phase: phase.value)
def test_moves_are_those_of_the_table(old, new):
    state = State()
    state.arrive(SequenceArrived("a", 1, 2))
    row = state.rows["a"]
    ways = {W: (), R: (R,), WV: (R, WV), V: (R, WV, V), WD: (R, WD), D: (R, WD, D), F: (F,)}
    for step in ways[old]:
        state.move(row, step)
    if new in MOVES[old]:
        state.move(row, new)
        assert row.phase is new
        assert state.num_finished == (new is F)
        assert (row in state.waiting) == (new is W)
    else:
        with pytest.raises(SchedulerError):
            state.move(row, new)
        assert row.phase is old
        assert state.num_finished == (old is F)


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
    bench = Bench(targets=(), rule="0")
    bench.arrive("b")  # verified beside it, and must not be touched either
    bench.arrive("a")
    bench.join("t", Role.TARGET)
    (batch,) = bench.flights["t"]
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
        bench.scheduler.handle(DraftCompleted("d", bench.flights["d"][0].batch_id, (outcome,)))
    assert snapshot(bench.scheduler) == before


def test_an_outcome_may_not_hold_more_than_the_log_unless_it_left():
    bench = bench_in(D)
    batch = bench.flights["d"][0].batch_id
    bench.drain("t")  # "a" goes back to the queue and leaves "d"
    bench.tell(DraftCompleted("d", batch, (DraftOutcome("a", OK, 9, 99),)))
    assert bench.phase("a") is W
