"""Planted faults, rounds and groups and the queue: each is noticed by the check named with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_drills import run_deaf, run_feed, run_window
from scheduler_plants import assert_caught, caught_by, plants_of

from coordinator.scheduler import dispatch, eqspec, exspec, orders, rounds
from coordinator.scheduler.commands import Verify
from coordinator.scheduler.dispatch import Dispatcher
from coordinator.scheduler.eqspec import EqSpec, StaticEqSpec
from coordinator.scheduler.events import DraftOverdue
from coordinator.scheduler.exspec import ExSpec, PaperExSpec
from coordinator.scheduler.rounds import Rounds
from coordinator.scheduler.rows import AWAITED, Phase
from coordinator.scheduler.scheduler import Scheduler
from coordinator.scheduler.state import State
from exspec.core.rounds import EntryStatus

# Drafts


@caught_by("staged-drafts")
def plant_late_draft_staged_for_a_later_round(patch) -> None:
    late = {}
    take, begin = Scheduler._take_draft, State.begin_round

    def take_draft(self, row, outcome):
        if outcome and outcome.status is EntryStatus.OK and row.phase is not Phase.DRAFTING:
            late[row] = outcome.num_drafted
        take(self, row, outcome)

    def begin_round(self, group, num_drafts):
        begin(self, group, num_drafts)
        for row, number in zip(group.rows.values(), num_drafts, strict=True):
            if not number:
                row.num_drafted = late.pop(row, 0)

    patch.setattr(Scheduler, "_take_draft", take_draft)
    patch.setattr(State, "begin_round", begin_round)


@caught_by("one-draft-at-a-time")
def plant_row_drafted_again_while_its_draft_is_overdue(patch) -> None:
    candidate = Rounds._candidate

    def again(self, row):
        in_flight, row.draft_batch = row.draft_batch, None
        overdue = set() if row.draft is None else set(row.draft.overdue)
        if row.draft is not None:
            row.draft.overdue.clear()
        try:
            return candidate(self, row)
        finally:
            if row.draft is not None:
                row.draft.overdue |= overdue
                row.draft_batch = in_flight

    patch.setattr(Rounds, "_candidate", again)


@caught_by("no-draft-while-overdue")
def plant_overdue_worker_asked_again(patch) -> None:
    patch.setattr(State, "give_up_waiting", lambda self, batch: None)


@caught_by("awaits-draft")
def plant_overdue_draft_waited_for(patch) -> None:
    handle = Scheduler.handle

    def deaf(self, event):
        return () if isinstance(event, DraftOverdue) else handle(self, event)

    patch.setattr(Scheduler, "handle", deaf)


@caught_by("waits-for-the-deaf", run=run_deaf)
def plant_rows_in_line_behind_an_overdue_draft_wait(patch) -> None:
    go_on = Scheduler._go_on_without

    def only_its_own(self, event):
        worker = self.state.workers[event.worker_id]
        in_line, worker.wanting = worker.wanting, {}
        go_on(self, event)
        worker.wanting = in_line

    patch.setattr(Scheduler, "_go_on_without", only_its_own)


@caught_by("own-number")
def plant_more_than_the_requests_own_number(patch) -> None:
    begin = State.begin_round

    def begin_round(self, group, num_drafts):
        rows = group.rows.values()
        more = [
            n + (n > 0 and row.max_draft_tokens is not None)
            for row, n in zip(rows, num_drafts, strict=True)
        ]
        begin(self, group, more)

    patch.setattr(State, "begin_round", begin_round)


@caught_by("fixed-number", rule="2")
def plant_rule_not_followed(patch) -> None:
    begin = State.begin_round
    patch.setattr(
        State, "begin_round", lambda self, group, ks: begin(self, group, [min(k, 1) for k in ks])
    )


@caught_by("no-draft-in-prefill")
def plant_rule_asked_for_rows_in_prefill(patch) -> None:
    patch.setattr(rounds, "is_near", lambda row, num_drafts: True)


@caught_by("only-live-rows", run=run_feed)
def plant_ended_row_fed(patch) -> None:
    def count_finished(self, row):
        self.num_finished += 1
        for home in (row.target, row.draft):
            if home is not None:
                home.num_finished += 1

    patch.setattr(State, "_count_finished", count_finished)


@caught_by("feed-stops-short")
def plant_fed_to_the_end(patch) -> None:
    feed = orders.feed_orders

    def feed_all(worker, budget):
        return [(row, replace(order, end=row.length)) for row, order in feed(worker, budget)]

    patch.setattr(dispatch, "feed_orders", feed_all)


@caught_by("feed-budget")
def plant_feed_budget_ignored(patch) -> None:
    feed = orders.feed_orders
    patch.setattr(dispatch, "feed_orders", lambda worker, budget: feed(worker, 99))


# Groups


@caught_by("verify-after-draft", policy="eqspec")
def plant_verify_does_not_wait(patch) -> None:
    verify = Dispatcher.dispatch

    def hasty(self):
        for target in self._state.targets.values():
            for group in target.groups:
                for row in tuple(group.rows.values()):
                    if row.phase in AWAITED and row.draft_batch is not None:
                        self._state.move(row, Phase.WANTS_VERIFY)
        return verify(self)

    patch.setattr(Dispatcher, "dispatch", hasty)


@caught_by("lockstep", policy="eqspec")
def plant_row_left_out(patch) -> None:
    choose = EqSpec.next_group

    def all_but_last(self, target, limits, costs):
        rows = choose(self, target, limits, costs)
        return rows[:-1] if rows and len(rows) > 1 else rows

    patch.setattr(EqSpec, "next_group", all_but_last)


@caught_by("one-verify-at-a-time")
def plant_verified_twice_at_once(patch) -> None:
    dispatch_once = Dispatcher.dispatch

    def twice(self):
        commands = dispatch_once(self)
        for command in tuple(commands):
            if isinstance(command, Verify) and self._state.num_finished == 0:
                commands.append(replace(command, batch_id=self._new_batch_id()))
        return commands

    patch.setattr(Dispatcher, "dispatch", twice)


@caught_by("invariant: .*(elsewhere|its group is|is empty|awaited).*")
def plant_row_left_in_its_group_after_it_moved(patch) -> None:
    def forget(self, row):
        row.group = None

    patch.setattr(State, "leave_group", forget)


@caught_by("batch-size", policy="exspec")
def plant_batch_size_ignored(patch) -> None:
    def all_ready(self, target, limits, costs):
        return tuple(target.ready.values())

    patch.setattr(ExSpec, "next_group", all_ready)


@caught_by("window", policy="exspec")
def plant_window_ignored(patch) -> None:
    patch.setattr(
        exspec,
        "has_window_room",
        lambda target, limits: target.has_free_slot and not target.is_full,
    )


@caught_by("batch-size", policy="eqspec")
def plant_batch_of_a_target_not_bounded(patch) -> None:
    patch.setattr(EqSpec, "has_room", lambda self, t, limits: eqspec.has_window_room(t, limits))


@caught_by("ageing", run=run_window)
def plant_ageing_ignored(patch) -> None:
    patch.setattr(exspec, "_can_all_wait", lambda rows, size, bound: True)
    patch.setattr(exspec, "_urgency", lambda row: row.place)


@caught_by("ageing", run=run_window)
def plant_ageing_bound_not_checked(patch) -> None:
    patch.setattr(exspec, "_can_all_wait", lambda rows, size, bound: True)


@caught_by("refill", policy="eqspec")
def plant_refilled_only_when_empty(patch) -> None:
    has_room = EqSpec.has_room
    patch.setattr(
        EqSpec, "has_room", lambda self, t, limits: not t.told and has_room(self, t, limits)
    )


@caught_by("no-refill", policy="eqspec-static")
def plant_static_batch_refilled(patch) -> None:
    patch.setattr(StaticEqSpec, "has_room", EqSpec.has_room)


@caught_by("one-group-in-play", policy="exspec-paper")
def plant_paper_begins_early(patch) -> None:
    def early(self, target, limits, costs):
        return tuple(target.ready.values())[: limits.batch_size]

    patch.setattr(PaperExSpec, "next_group", early)


PLANTS = plants_of(globals())


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__[6:])
def test_planted_fault_is_found(plant, monkeypatch):
    assert_caught(plant, monkeypatch)
