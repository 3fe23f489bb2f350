"""Planted faults, what is ordered and held: each is noticed by the check that is named with it.

A harness that cannot fail proves nothing: invariants alone once missed a forgotten bonus token.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import scheduler_fakes
from scheduler_drills import run_deaf, run_feed, run_queue, run_window
from scheduler_plants import assert_caught, caught_by, plants_of
from scheduler_random import run_random

from coordinator.scheduler import checks, orders, rounds
from coordinator.scheduler.commands import Release
from coordinator.scheduler.dispatch import Dispatcher
from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.homes import Homes
from coordinator.scheduler.rows import Phase
from coordinator.scheduler.scheduler import Scheduler
from coordinator.scheduler.state import State
from exspec.core.acceptance import Acceptance, accept
from exspec.core.ids import Role


@caught_by("prefill-flag|drafts-go-on-from-the-log")
def plant_bonus_not_counted(patch) -> None:
    commit = State.commit
    patch.setattr(State, "commit", lambda self, row, n: commit(self, row, max(0, n - 1)))


@caught_by("truth")
def plant_wrong_bonus(patch) -> None:
    """The driver commits the choice after the wrong draft token."""

    def off_by_one(drafts, choices):
        verdict = accept(drafts, choices)
        return Acceptance(verdict.num_accepted, choices[max(0, verdict.num_accepted - 1)])

    patch.setattr(scheduler_fakes, "accept", off_by_one)


@caught_by("starts-where-it-stands")
def plant_kv_length_too_high(patch) -> None:
    def hold(self, row, kv_length):
        row.target_kv_length = min(kv_length + 1, row.length - 1)

    patch.setattr(State, "hold", hold)


@caught_by("starts-where-it-stands")
def plant_kv_length_too_low(patch) -> None:
    def hold(self, row, kv_length):
        row.target_kv_length = max(0, min(kv_length, row.length - 1) - 1)

    patch.setattr(State, "hold", hold)


@caught_by("starts-where-it-stands")
def plant_draft_kv_length_not_believed(patch) -> None:
    patch.setattr(State, "hold_draft", lambda self, row, kv_length: None)


@caught_by("all-released")
def plant_release_forgotten_on_cancel(patch) -> None:
    note = Homes._note_release

    def forgetful(self, row, worker):
        if row.phase is not Phase.FINISHED:
            note(self, row, worker)

    patch.setattr(Homes, "_note_release", forgetful)


@caught_by("all-released")
def plant_release_forgotten_with_a_draft_in_flight(patch) -> None:
    note = Homes._note_release

    def forgetful(self, row, worker):
        if worker.role is Role.TARGET or row.draft_batch is None:
            note(self, row, worker)

    patch.setattr(Homes, "_note_release", forgetful)


@caught_by("release-once")
def plant_released_twice(patch) -> None:
    take = Homes.take_releases

    def twice(self):
        return [Release(r.worker_id, r.sequence_ids * 2) for r in take(self)]

    patch.setattr(Homes, "take_releases", twice)


@caught_by("release-after-verify")
def plant_released_in_flight(patch) -> None:
    def finish(self, row):
        self.state.leave_group(row)
        self.state.move(row, Phase.FINISHED)
        if row.batch is not None:
            for home in (row.target, row.draft):
                if home is not None:
                    self._homes._note_release(row, home)
        else:
            self._homes.retire(row)

    patch.setattr(Scheduler, "_finish", finish)


@caught_by("must-restart")
def plant_epoch_not_raised(patch) -> None:
    restart = State.restart_target

    def same_epoch(self, row):
        epoch = row.target_epoch
        restart(self, row)
        row.target_epoch = epoch

    patch.setattr(State, "restart_target", same_epoch)


@caught_by("epoch-rises-with-the-home")
def plant_draft_epoch_not_raised(patch) -> None:
    def same_epoch(self, row):
        row.draft_kv_length = 0

    patch.setattr(State, "restart_draft", same_epoch)


@caught_by("invariant: .* is no prefill.*")
def plant_prefill_marked_final(patch) -> None:
    build = orders._verify_order
    patch.setattr(orders, "_verify_order", lambda *a: replace(build(*a), is_prefill=False))


@caught_by("invariant: .*are queued.*")
def plant_lost_row_dropped(patch) -> None:
    rehome = Homes.rehome

    def lossy(self, row, avoided=None):
        rehome(self, row, avoided)
        if row.phase is Phase.WAITING:
            self._state.waiting.remove(row)

    patch.setattr(Homes, "rehome", lossy)


@caught_by("useful-drafts")
def plant_cap_ignored(patch) -> None:
    patch.setattr(rounds, "most_drafts", lambda row, worker: 5)


@caught_by("useful-drafts")
def plant_draft_context_ignored(patch) -> None:
    most = rounds.most_drafts
    patch.setattr(rounds, "most_drafts", lambda row, worker: most(row, None))


@caught_by("invariant: N/N slots")
def plant_slot_not_counted(patch) -> None:
    patch.setattr(EqSpec, "has_room", lambda self, target, limits: not target.is_draining)


@caught_by("invariant: .*round is to come")
def plant_old_round_index(patch) -> None:
    begin = State.begin_batch

    def begin_batch(self, batch):
        rounds_before = [row.round_index for row in batch.rows]
        begin(self, batch)
        for row, round_index in zip(batch.rows, rounds_before, strict=True):
            row.round_index = round_index

    patch.setattr(State, "begin_batch", begin_batch)


@caught_by("batches-in-flight")
def plant_more_batches_in_flight(patch) -> None:
    patch.setattr(Dispatcher, "_has_room", lambda self, worker: True)


@caught_by("starts-where-it-stands")
def plant_outcomes_unchecked_and_swapped(patch) -> None:
    end = State.end_batch

    def swapped(self, batch):
        end(self, batch)
        object.__setattr__(batch, "rows", batch.rows[::-1])

    patch.setattr(checks, "_check_rows", lambda batch, outcomes: None)
    patch.setattr(State, "end_batch", swapped)


@caught_by("alignment")
def plant_alignment_not_noted(patch) -> None:
    patch.setattr(State, "align", lambda self, row, left_pad: None)


PLANTS = plants_of(globals())


@pytest.mark.parametrize("run", [run_random, run_queue, run_window, run_feed, run_deaf])
def test_nothing_planted_nothing_found(run):
    for seed in range(40):
        run(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__[6:])
def test_planted_fault_is_found(plant, monkeypatch):
    assert_caught(plant, monkeypatch)
