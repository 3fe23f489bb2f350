"""Throughput by targets: the costs that are read off two runs, and what is made of both sides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from exspec.bench.runs import RunSample
from exspec.bench.simulation_process import run_simulations
from exspec.bench.targets import compared, pin, simulated_plan, verify_line
from exspec.cli.main import app
from exspec.core.cluster import ClusterStatus, Totals
from exspec.core.errors import InvalidRequestError

STATUS = ClusterStatus("v", is_ready=True, model="m", policy="exspec")


def totals(num_rounds, rows, pass_seconds, round_seconds):
    return Totals(
        num_rounds=num_rounds,
        num_row_rounds=num_rounds * rows,
        verify_seconds=num_rounds * pass_seconds,
        round_seconds=num_rounds * round_seconds,
    )


def sample(seconds, tokens):
    return RunSample(seconds, tokens, (seconds,), Totals(), STATUS)


def test_the_line_goes_through_both_measured_passes():
    line = verify_line(totals(10, 1, 0.020, 0.024), totals(10, 4, 0.029, 0.040))
    assert line.fixed_seconds == pytest.approx(0.017)
    assert line.per_row_seconds == pytest.approx(0.003)
    assert line.wire_seconds == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("single", "full"),
    [
        (totals(10, 1, 0.02, 0.03), totals(10, 1, 0.02, 0.03)),
        (Totals(), totals(10, 4, 0.02, 0.03)),
    ],
)
def test_without_two_sizes_there_is_no_line(single, full):
    with pytest.raises(InvalidRequestError, match="two batch sizes"):
        verify_line(single, full)


def test_the_simulator_foretells_what_the_line_allows():
    """One target of four rows: 4 tokens per 29 ms; two targets give twice that."""
    line = verify_line(totals(10, 1, 0.020, 0.020), totals(10, 4, 0.029, 0.029))
    prompts = tuple((1, 2, 3) for _ in range(16))
    plans = [simulated_plan(line, number, 4, prompts, 64) for number in (1, 2)]
    one, two = (run.tokens_per_second for run in run_simulations(plans))
    assert one == pytest.approx(4 / 0.029, rel=0.05)
    assert two == pytest.approx(2 * one, rel=0.05)


def test_tokens_are_held_against_those_of_the_smallest_cluster():
    measured = {2: sample(1.0, ((1, 2), (3, 5))), 1: sample(2.0, ((1, 2), (3, 4)))}
    one, two = compared(measured, {1: 2.0, 2: 8.0})
    assert (one.num_targets, one.measured, one.ratio, one.num_identical) == (1, 2.0, 1.0, 2)
    assert (two.num_targets, two.measured, two.ratio, two.num_identical) == (2, 4.0, 0.5, 1)


def test_a_process_is_pinned_with_all_its_threads():
    core = min(os.sched_getaffinity(0))
    code = "import threading; threading.Thread(target=input).start(); print(1, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        pin(process.pid, core)
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        assert len(threads) == 2
        assert all(os.sched_getaffinity(thread) == {core} for thread in threads)
        process.communicate("\n")


def test_a_core_that_is_not_there_is_refused():
    with pytest.raises(InvalidRequestError, match="no core 4096"):
        pin(os.getpid(), 4096)


def test_a_batch_of_one_row_is_refused():
    result = CliRunner().invoke(app, ["bench", "targets", "--batch-size", "1"])
    assert result.exit_code == 2
    assert "--batch-size" in result.output
