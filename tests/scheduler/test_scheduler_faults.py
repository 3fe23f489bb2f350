"""Planted faults: the simulation must notice each of them, and nothing else.

A harness that cannot fail proves nothing: invariants alone once missed a forgotten bonus token.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scheduler_fakes
from scheduler_random import run_random

from coordinator.scheduler import checks, orders, scheduler
from coordinator.scheduler.commands import Release
from coordinator.scheduler.dispatch import Dispatcher
from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.homes import Homes
from coordinator.scheduler.rows import Phase, SchedulerError
from coordinator.scheduler.scheduler import Scheduler
from coordinator.scheduler.state import State
from exspec.core.acceptance import Acceptance, accept

SEEDS = range(40)


def plant_bonus_not_counted(patch) -> None:
    commit = State.commit
    patch.setattr(State, "commit", lambda self, row, n: commit(self, row, max(0, n - 1)))


def plant_wrong_bonus(patch) -> None:
    """The driver commits the choice after the wrong draft token."""

    def off_by_one(drafts, choices):
        verdict = accept(drafts, choices)
        return Acceptance(verdict.num_accepted, choices[max(0, verdict.num_accepted - 1)])

    patch.setattr(scheduler_fakes, "accept", off_by_one)


def plant_kv_length_too_high(patch) -> None:
    def hold(self, row, kv_length):
        row.target_kv_length = min(kv_length + 1, row.length - 1)

    patch.setattr(State, "hold", hold)


def plant_kv_length_too_low(patch) -> None:
    def hold(self, row, kv_length):
        row.target_kv_length = max(0, min(kv_length, row.length - 1) - 1)

    patch.setattr(State, "hold", hold)


def plant_release_forgotten_on_cancel(patch) -> None:
    note = Homes._note_release

    def forgetful(self, row, worker):
        if row.phase is not Phase.FINISHED:
            note(self, row, worker)

    patch.setattr(Homes, "_note_release", forgetful)


def plant_released_twice(patch) -> None:
    take = Homes.take_releases

    def twice(self):
        return [Release(r.worker_id, r.sequence_ids * 2) for r in take(self)]

    patch.setattr(Homes, "take_releases", twice)


def plant_released_in_flight(patch) -> None:
    def finish(self, row):
        self.state.move(row, Phase.FINISHED)
        for home in (row.target, row.draft):
            if home is not None:
                self._homes._note_release(row, home)
        if row.batch is None:
            self._homes.retire(row)

    patch.setattr(Scheduler, "_finish", finish)


def plant_epoch_not_raised(patch) -> None:
    restart = State.restart_target

    def same_epoch(self, row):
        epoch = row.target_epoch
        restart(self, row)
        row.target_epoch = epoch

    patch.setattr(State, "restart_target", same_epoch)


def plant_draft_epoch_not_raised(patch) -> None:
    def same_epoch(self, row):
        row.draft_kv_length = 0

    patch.setattr(State, "restart_draft", same_epoch)


def plant_row_left_out(patch) -> None:
    choose = EqSpec.next_verify

    def all_but_last(self, target, limits):
        rows = choose(self, target, limits)
        return rows[:-1] if rows and len(rows) > 1 else rows

    patch.setattr(EqSpec, "next_verify", all_but_last)


def plant_verify_does_not_wait(patch) -> None:
    def hasty(self, target, limits):
        return target.rows_in(Phase.WANTS_VERIFY) or None

    patch.setattr(EqSpec, "next_verify", hasty)


def plant_stale_drafts_kept(patch) -> None:
    patch.setattr(State, "unstage", lambda self, row: None)


def plant_prefill_marked_final(patch) -> None:
    build = orders._verify_order

    def final(row, num_fed):
        order = build(row, num_fed)
        return type(order)(order.key, order.start, order.end, order.num_draft_tokens)

    patch.setattr(orders, "_verify_order", final)


def plant_lost_row_dropped(patch) -> None:
    rehome = Homes.rehome

    def lossy(self, row, avoided=None):
        rehome(self, row, avoided)
        if row.phase is Phase.WAITING:
            self._state.waiting.remove(row)

    patch.setattr(Homes, "rehome", lossy)


def plant_cap_ignored(patch) -> None:
    def uncapped(row, rule):
        wanted = row.max_draft_tokens
        return rule.num_wanted(row) if wanted is None else wanted

    for module in (orders, scheduler):
        patch.setattr(module, "num_useful_drafts", uncapped)


def plant_slot_not_counted(patch) -> None:
    patch.setattr(EqSpec, "has_room", lambda self, target, limits: not target.is_draining)


def plant_old_round_index(patch) -> None:
    begin = State.begin_batch

    def begin_batch(self, batch):
        rounds = [row.round_index for row in batch.rows]
        begin(self, batch)
        for row, round_index in zip(batch.rows, rounds, strict=True):
            row.round_index = round_index

    patch.setattr(State, "begin_batch", begin_batch)


def plant_busy_worker_ordered_again(patch) -> None:
    dispatch = Dispatcher.dispatch

    def eager(self):
        for worker in self._state.workers.values():
            worker.batch = None
        return dispatch(self)

    patch.setattr(Dispatcher, "dispatch", eager)


def plant_outcomes_unchecked_and_swapped(patch) -> None:
    end = State.end_batch

    def swapped(self, batch):
        end(self, batch)
        object.__setattr__(batch, "rows", batch.rows[::-1])

    patch.setattr(checks, "_check_rows", lambda batch, outcomes: None)
    patch.setattr(State, "end_batch", swapped)


PLANTS = [value for name, value in sorted(globals().items()) if name.startswith("plant_")]


def test_nothing_planted_nothing_found():
    for seed in SEEDS:
        run_random(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__[6:])
def test_planted_fault_is_found(plant: Callable, monkeypatch):
    with monkeypatch.context() as patch:
        plant(patch)
        found = _first_failure()
    assert found is not None, f"{plant.__name__} went unnoticed in {len(SEEDS)} runs"


def _first_failure() -> str | None:
    """What a shadow ledger, an invariant or the scheduler itself says first."""
    for seed in SEEDS:
        try:
            run_random(seed)
        except (AssertionError, SchedulerError) as error:
            return f"seed {seed}: {error}"
    return None
