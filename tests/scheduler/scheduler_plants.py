"""Planting faults and naming the check that catches them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from scheduler_accounts import ViolationError
from scheduler_random import run_random

from coordinator.scheduler.invariants import InvariantError
from coordinator.scheduler.rows import SchedulerError

NUM_RUNS = 60


def check_of(error: Exception) -> str:
    """Which check an error comes from: a rule of the shadow, an invariant, or who raised it."""
    if isinstance(error, ViolationError):
        return error.rule
    if isinstance(error, InvariantError):
        return f"invariant: {_sentence(error)}"
    if isinstance(error, SchedulerError):
        return f"refused: {_sentence(error)}"
    return f"worker: {_sentence(error)}"


def catch(
    plant: Callable, expected: str, run: Callable, patch, **options
) -> tuple[str | None, set]:
    """The first check found that `expected` (a pattern) matches, and all others found before."""
    plant(patch)
    others: set[str] = set()
    for seed in range(NUM_RUNS):
        try:
            run(seed, **options)
        except (AssertionError, SchedulerError) as error:
            check = check_of(error)
            if re.fullmatch(expected, check):
                sys.stdout.write(f"{plant.__name__[6:]}: caught by [{check}], run {seed}\n")
                return check, others
            others.add(check)
    return None, others


def caught_by(expected: str, run: Callable = run_random, **options):
    """Mark a planted fault with the check that must catch it, and the runs in which it shows."""

    def mark(plant: Callable) -> Callable:
        plant.caught_by = (expected, run, options)
        return plant

    return mark


def plants_of(names: dict[str, object]) -> list[Callable]:
    return [plant for plant in names.values() if hasattr(plant, "caught_by")]


def assert_caught(plant: Callable, monkeypatch) -> None:
    expected, run, options = plant.caught_by
    with monkeypatch.context() as patch:
        check, others = catch(plant, expected, run, patch, **options)
    assert check, f"{plant.__name__} went unnoticed by {expected}; others said {sorted(others)}"


def _sentence(error: Exception) -> str:
    """What is wrong, without names and numbers."""
    text = getattr(error, "message", None) or str(error)
    text = text.partition(": ")[2] or text
    return re.sub(r"\d+", "N", re.sub(r"\(.*\)|\[.*?\]", "...", text))[:50]
