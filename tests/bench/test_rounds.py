"""Shares of a round, and what was expected of them; the rest of the bench's arithmetic."""

from __future__ import annotations

import os

import pytest

from exspec.bench import report
from exspec.bench.arguments import layouts_of, numbers_of
from exspec.bench.load import LoadPlan
from exspec.bench.memory import MemoryPlan, ProcessMemory, measure_memory, resident_bytes
from exspec.bench.rounds import (
    RoundsPlan,
    RoundsSample,
    expectations,
    measure_rounds,
    round_shares,
)
from exspec.client.fake import FakeCoordinator
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError, WorkerLostError

TOTALS = Totals(
    num_rounds=10,
    num_row_rounds=40,
    num_accepted_tokens=60,
    round_seconds=2.0,
    draft_seconds=0.5,
    verify_seconds=1.2,
    align_seconds=0.1,
    worker_overhead_seconds=0.04,
    num_moved_rows=12,
)


def sample(layout="padded", batch_size=8, totals=TOTALS):
    return RoundsSample(layout, batch_size, 16, 100, 5.0, totals)


def test_shares_add_up_to_a_round():
    shares = round_shares(TOTALS)
    assert (shares.draft, shares.verify, shares.align) == (0.25, 0.6, 0.05)
    assert shares.worker_overhead == pytest.approx(0.02)
    assert shares.rest == pytest.approx(0.08)
    nothing = round_shares(Totals())
    assert (nothing.draft, nothing.rest) == (0.0, 0.0)


def test_a_sample_knows_its_means():
    made = sample()
    assert (made.rows_per_round, made.acceptance_length) == (4.0, 2.5)
    assert made.round_milliseconds == 200.0
    empty = sample(totals=Totals())
    assert (empty.rows_per_round, empty.acceptance_length, empty.round_milliseconds) == (0, 0, 0)


def test_expectations_are_of_slots_and_of_batch_eight():
    samples = [sample(), sample(batch_size=4), sample("slots", 4), sample("slots", 8)]
    found = expectations(samples)
    assert [(one.text.split(":")[0], one.is_met) for one in found] == [
        ("padded, B = 8", False),
        ("slots, B = 4", False),
        ("slots, B = 8", False),
        ("slots, B = 8", False),
    ]
    fast = Totals(round_seconds=2.0, verify_seconds=1.95, align_seconds=0.01)
    met = expectations([sample("slots", 8, fast)])
    assert [one.is_met for one in met] == [True, True]
    assert report.expectation_line(met[0]).startswith("met")
    assert report.expectation_line(found[0]).startswith("MISSED")


def test_a_rounds_row_fits_its_columns():
    assert len(report.rounds_row(sample())) == len(report.ROUNDS_COLUMNS)
    document = report.rounds_dict([sample()], expectations([sample()]))
    assert document["samples"][0]["shares"]["draft"] == 0.25
    assert document["expectations"][0]["is_met"] is False


def test_every_batch_size_is_warmed_up_and_measured():
    with FakeCoordinator(default_text="okay") as fake:
        plan = RoundsPlan((1, 3), 2, 4, 5)
        done = []
        samples = measure_rounds(fake.address, "slots", [(1,), (2,)], plan, lambda: done.append(1))
        requests = fake.requests
    assert [(one.batch_size, one.num_requests, one.num_tokens) for one in samples] == [
        (1, 2, 8),
        (3, 6, 24),
    ]
    assert len(requests) == (1 + 2) + (3 + 6)
    assert all(request.sampling.ignore_eos for request in requests)
    assert len(done) == plan.num_requests == 8


def test_memory_is_read_from_this_process():
    assert 1e6 < resident_bytes("me", os.getpid()) < 1e11


def test_a_process_that_has_ended_is_named():
    with pytest.raises(WorkerLostError, match="target-0"):
        resident_bytes("target-0", 2**22 - 3)


def test_looks_are_taken_after_running_counts():
    with FakeCoordinator() as fake:
        plan = MemoryPlan((2, 5), LoadPlan(2, {"max_tokens": 1}))
        (process,) = measure_memory(fake.address, {"me": os.getpid()}, [(1,)], plan)
        assert len(fake.requests) == 5
    assert len(process.resident_bytes) == 2


@pytest.mark.parametrize("counts", [(50,), (50, 50), (500, 50), (0, 5), ()])
def test_counts_must_grow(counts):
    with pytest.raises(InvalidRequestError, match="growing counts"):
        MemoryPlan(counts, LoadPlan(1, {}))


def test_growth_is_a_share_of_the_first_look():
    steady, leaking = ProcessMemory("a", (1000, 1010)), ProcessMemory("b", (1000, 1100))
    assert steady.is_steady
    assert not leaking.is_steady
    assert report.memory_row(leaking)[-2:] == ("+10.00%", "NO (over 2%)")


def test_lists_of_numbers_and_layouts():
    assert numbers_of("batch_sizes", "1, 4,8") == (1, 4, 8)
    assert layouts_of("slots, padded") == ("slots", "padded")
    for text in ("", "1,x", "0", "-1", "1,,2"):
        with pytest.raises(InvalidRequestError, match="--batch-sizes"):
            numbers_of("batch_sizes", text)
    with pytest.raises(InvalidRequestError, match="unknown layout 'paged'"):
        layouts_of("slots,paged")
