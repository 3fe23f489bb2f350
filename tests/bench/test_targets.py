"""Throughput by targets: the costs that are read off two runs, and what is made of both sides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from exspec.bench.runs import RunSample
from exspec.bench.simulation_process import run_simulations
from exspec.bench.targets import PassCosts, compared, pass_costs, pin, simulated_plan
from exspec.cli.main import app
from exspec.core.cluster import ClusterStatus, Totals
from exspec.core.errors import InvalidRequestError

STATUS = ClusterStatus("v", is_ready=True, model="m", policy="exspec")


def totals(num_rounds, rows, pass_seconds, round_seconds=0.0, *, prompt_tokens=0, requests=0):
    """`rows` tokens per round, and the prompts."""
    return Totals(
        num_requests=requests,
        num_prompt_tokens=prompt_tokens,
        num_generated_tokens=num_rounds * rows,
        num_rounds=num_rounds,
        num_row_rounds=num_rounds * rows,
        verify_seconds=num_rounds * pass_seconds,
        round_seconds=num_rounds * (round_seconds or pass_seconds),
    )


def machine(rows, tokens):
    """Seconds of a pass on a machine of 15 ms + 2 ms per row + 1 ms per token."""
    return 0.015 + 0.002 * rows + 0.001 * tokens


PREFILL = totals(10, 1, machine(1, 20), prompt_tokens=200, requests=10)
SINGLE = totals(100, 1, machine(1, 1.5), machine(1, 1.5) + 0.004, prompt_tokens=60, requests=10)
FULL = totals(100, 4, machine(4, 5), prompt_tokens=110, requests=10)


def sample(seconds, tokens):
    return RunSample(seconds, tokens, (seconds,), Totals(), STATUS)


def test_three_runs_say_what_a_pass_a_row_and_a_token_cost():
    costs = pass_costs(PREFILL, SINGLE, FULL)
    assert costs.fixed_seconds == pytest.approx(0.015)
    assert costs.per_row_seconds == pytest.approx(0.002)
    assert costs.per_token_seconds == pytest.approx(0.001)
    assert costs.wire_seconds == pytest.approx(0.002)


@pytest.mark.parametrize(
    "runs", [(PREFILL, SINGLE, SINGLE), (SINGLE, SINGLE, FULL), (PREFILL, Totals(), FULL)]
)
def test_runs_that_are_too_much_alike_say_nothing(runs):
    with pytest.raises(InvalidRequestError):
        pass_costs(*runs)


def test_the_simulator_foretells_what_the_costs_allow():
    """One target of four rows: 4 tokens per 27 ms; two targets give twice that."""
    costs = PassCosts(0.015, 0.002, 0.001, wire_seconds=0.0)
    prompts = tuple((1, 2, 3) for _ in range(16))
    plans = [simulated_plan(costs, number, 4, prompts, 64) for number in (1, 2)]
    one, two = (run.tokens_per_second for run in run_simulations(plans))
    assert one == pytest.approx(4 / machine(4, 4), rel=0.05)
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
