"""The invariants can fail: each corruption of a healthy scheduler is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_bench import Bench

from coordinator.scheduler import invariants
from coordinator.scheduler.invariants import InvariantError, Progress
from coordinator.scheduler.rows import Phase, Standing
from exspec.core.ids import Role


def healthy() -> Bench:
    """Row "a" is verified on "t", row "b" idle beside it, "c" waits."""
    bench = Bench(targets=(), batch_size=2)
    bench.arrive("a")
    bench.join("t", Role.TARGET)
    bench.arrive("b")
    bench.arrive("c")
    assert bench.scheduler.phase_of("b") is Phase.WANTS_VERIFY
    assert bench.scheduler.phase_of("c") is Phase.WAITING
    return bench


def worker(bench):
    return bench.scheduler.state.workers["t"]


CORRUPTIONS = {
    "length 101/100": lambda bench: setattr(bench.row("a"), "length", 101),
    "full but not finished": lambda bench: setattr(bench.row("a"), "length", 100),
    "the last is always fed": lambda bench: setattr(bench.row("a"), "target_kv_length", 10),
    "draft worker holds": lambda bench: setattr(bench.row("a"), "draft_kv_length", 11),
    "drafts staged while waiting": lambda bench: setattr(bench.row("c"), "num_drafted", 1),
    "but its batch is": lambda bench: setattr(bench.row("a"), "batch", None),
    "without a target": lambda bench: setattr(bench.row("a"), "target", None),
    "does not know of it": lambda bench: worker(bench).rows.pop("b"),
    "was forgotten but owns a slot": lambda bench: bench.scheduler.state.rows.pop("b"),
    "2/1 slots": lambda bench: setattr(worker(bench), "num_slots", 1),
    "may outgrow": lambda bench: setattr(worker(bench), "max_length", 99),
    "counted": lambda bench: worker(bench).num_rows_in.update({Phase.VERIFYING: 2}),
    "drains, but b stays": lambda bench: setattr(worker(bench), "standing", Standing.DRAINING),
    "told of rows that left": lambda bench: worker(bench).told.add("c"),
    "round is not last": lambda bench: setattr(bench.row("a"), "round_index", 9),
    "in the queue": lambda bench: bench.scheduler.state.waiting.clear(),
    "which left": lambda bench: bench.scheduler.state.workers.clear(),
    "holds a row twice": lambda bench: setattr(
        worker(bench),
        "batch",
        replace(
            worker(bench).batch,
            rows=worker(bench).batch.rows * 2,
            orders=worker(bench).batch.orders * 2,
        ),
    ),
}


@pytest.mark.parametrize("message", CORRUPTIONS)
def test_a_corruption_is_named(message):
    bench = healthy()
    invariants.check(bench.scheduler)
    CORRUPTIONS[message](bench)
    with pytest.raises(InvariantError, match=message):
        invariants.check(bench.scheduler)


@pytest.mark.parametrize("mark", ["target_epoch", "draft_epoch", "round_index", "length"])
def test_what_must_only_rise_is_watched(mark):
    bench = healthy()
    progress = Progress()
    setattr(bench.row("a"), mark, 5)
    progress.check(bench.scheduler)
    progress.check(bench.scheduler)
    setattr(bench.row("a"), mark, 4)
    with pytest.raises(InvariantError, match="fell"):
        progress.check(bench.scheduler)
