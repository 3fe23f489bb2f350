"""Planted faults, prefill budgets and the queue: each is noticed by the check named with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_drills import run_queue
from scheduler_plants import assert_caught, caught_by, plants_of

from coordinator.scheduler import dispatch, orders
from coordinator.scheduler.budgets import Budgets
from coordinator.scheduler.queueing import Place, Turns

# Prefill


@caught_by("mixed-budget")
def plant_mixed_budget_ignored(patch) -> None:
    patch.setattr(Budgets, "prefill", lambda self, target, num: 99)


@caught_by("prefill-budget")
def plant_prefill_budget_ignored(patch) -> None:
    plan = orders.plan_verify
    patch.setattr(dispatch, "plan_verify", lambda rows, budget: plan(rows, 99))


# The queue


@caught_by("queue-priority", run=run_queue)
def plant_priority_ignored(patch) -> None:
    place = Turns.place
    patch.setattr(Turns, "place", lambda self, priority, group: place(self, 0, group))


@caught_by("queue-fairness", run=run_queue)
def plant_fair_turns_ignored(patch) -> None:
    place = Turns.place

    def first_come(self, priority, group):
        return replace(place(self, priority, group), turn=0)

    patch.setattr(Turns, "place", first_come)


@caught_by("queue-order", run=run_queue)
def plant_last_come_first_served(patch) -> None:
    place = Turns.place

    def last_come(self, priority, group):
        here = place(self, priority, group)
        return Place(here.priority, -here.turn, -here.arrival_index)

    patch.setattr(Turns, "place", last_come)


PLANTS = plants_of(globals())


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__[6:])
def test_planted_fault_is_found(plant, monkeypatch):
    assert_caught(plant, monkeypatch)
