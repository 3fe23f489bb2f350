"""How far drafts get of what was planned for them, by place."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.scheduler.estimates import Depths


def test_before_anything_was_drafted_all_is_made():
    depths = Depths(0.98)
    assert depths.chance(1) == depths.chance(9) == 1
    assert depths.expected(5) == 5
    assert depths.expected(0) == 0


def test_every_place_has_its_share_and_later_ones_are_like_the_last_known():
    depths, random = Depths(0.999), Random(3)
    for _ in range(4000):
        made = sum(1 for _ in range(4) if random.random() < 0.5)
        depths.note(4, made)
    truth = [15 / 16, 11 / 16, 5 / 16, 1 / 16]
    assert [depths.chance(k) for k in (1, 2, 3, 4)] == pytest.approx(truth, abs=0.03)
    assert depths.chance(8) == depths.chance(4)
    assert depths.expected(4) == pytest.approx(2, abs=0.1)


def test_a_place_that_is_new_begins_like_the_one_before_it():
    depths = Depths(0.98)
    for number in (0, 1) * 50:
        depths.note(1, number)
    assert depths.chance(1) == pytest.approx(0.5, abs=0.05)
    depths.note(2, 0)
    assert depths.chance(2) == pytest.approx(depths.chance(1) / 2, abs=0.05)


def test_no_place_is_reached_more_often_than_the_one_before_it():
    """What is known of places that were not planned for long is out of date."""
    depths = Depths(0.98)
    for _ in range(50):
        depths.note(8, 8)
    for _ in range(200):
        depths.note(1, 0)
    assert depths.chance(1) == depths.chance(8) < 0.05
    assert depths.expected(8) < 0.4


def test_what_is_old_is_unlearned_sooner_after_a_time_without_drafts():
    depths, fresh = Depths(0.98), Depths(0.98)
    for one in (depths, fresh):
        for _ in range(100):
            one.note(3, 3)
    for _ in range(200):
        depths.fade(0.97, 2.0)
    assert depths.chance(2) == pytest.approx(fresh.chance(2))
    depths.note(3, 0)
    fresh.note(3, 0)
    assert depths.chance(2) < 0.7 < 0.95 < fresh.chance(2)
