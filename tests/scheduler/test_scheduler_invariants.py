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
    """On "t": row "a" is verified, "b" ready beside it, "e" drafts for nobody yet; "c" waits.

    On "u": "x" and "y" are in one group, "x" being drafted, "y" not drafting.
    """
    bench = Bench(targets=(), batch_size=2)
    bench.arrive("x")
    bench.arrive("y", max_draft_tokens=0)
    bench.join("u", Role.TARGET, num_slots=2)
    bench.verified("u")
    bench.arrive("a")
    bench.join("t", Role.TARGET)
    bench.arrive("b")
    bench.arrive("c")
    phases = [bench.phase(name) for name in "xyabc"]
    assert phases == [
        Phase.DRAFTING,
        Phase.WANTS_VERIFY,
        Phase.VERIFYING,
        Phase.READY,
        Phase.WAITING,
    ]
    return bench


def worker(bench, name="t"):
    return bench.scheduler.state.workers[name]


def group(bench):
    (only,) = worker(bench, "u").groups
    return only


def verify_twice(bench):
    batch = bench.row("a").batch
    doubled = replace(batch, rows=batch.rows * 2, orders=batch.orders * 2)
    worker(bench).batches[batch.batch_id] = doubled


CORRUPTIONS = {
    "length 101/100": lambda bench: setattr(bench.row("a"), "length", 101),
    "full but not finished": lambda bench: setattr(bench.row("a"), "length", 100),
    "the last is always fed": lambda bench: setattr(bench.row("a"), "target_kv_length", 10),
    "draft worker holds": lambda bench: setattr(bench.row("a"), "draft_kv_length", 11),
    "drafts staged while waiting": lambda bench: setattr(bench.row("c"), "num_drafted", 1),
    "drafts staged while ready": lambda bench: setattr(bench.row("b"), "num_drafted", 1),
    "but its verify is": lambda bench: setattr(bench.row("a"), "batch", None),
    "in no draft batch": lambda bench: setattr(bench.row("x"), "draft_batch", None),
    "drafting without a draft worker|does not live on": lambda bench: setattr(
        bench.row("x"), "draft", None
    ),
    "but its group is": lambda bench: setattr(bench.row("b"), "group", group(bench)),
    "without a target": lambda bench: setattr(bench.row("a"), "target", None),
    "does not know of it": lambda bench: worker(bench).rows.pop("b"),
    "was forgotten but owns a slot": lambda bench: bench.scheduler.state.rows.pop("b"),
    "2/1 slots": lambda bench: setattr(worker(bench), "num_slots", 1),
    "may outgrow": lambda bench: setattr(worker(bench), "max_length", 99),
    "ready are": lambda bench: worker(bench).ready.clear(),
    "wanting are": lambda bench: worker(bench, "d").wanting.update({"x": bench.row("x")}),
    "counted": lambda bench: setattr(worker(bench), "num_finished", 1),
    "rows ended, 1 counted": lambda bench: setattr(bench.scheduler.state, "num_finished", 1),
    "drains, but b stays": lambda bench: setattr(worker(bench), "standing", Standing.DRAINING),
    "told of rows that left": lambda bench: worker(bench).told.add("c"),
    "round is to come": lambda bench: setattr(bench.row("a"), "round_index", 0),
    "are queued": lambda bench: bench.scheduler.state.waiting.clear(),
    "which left": lambda bench: bench.scheduler.state.workers.clear(),
    "holds a row twice": verify_twice,
    "awaited, 0 counted": lambda bench: setattr(group(bench), "num_awaited", 0),
    "is empty": lambda bench: group(bench).rows.clear(),
    "belongs to t": lambda bench: setattr(group(bench), "target", worker(bench)),
    "is elsewhere": lambda bench: group(bench).rows.update({"b": bench.row("b")}),
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
