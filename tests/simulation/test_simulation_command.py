"""`exspec bench simulate`: tables, files, refusals, and the named scenarios made small."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from exspec.bench import simulation_process
from exspec.bench.simulation import RunPlan, Sample
from exspec.bench.simulation_cost import cost_study
from exspec.bench.simulation_paper import paper_study
from exspec.bench.simulation_process import run_simulations
from exspec.bench.simulation_scaling import (
    BY_BATCH,
    BY_ROW,
    expected_tokens,
    round_bound,
    scaling_study,
    throughput_bound,
)
from exspec.cli.main import app
from exspec.core.errors import InvalidRequestError, PeerError

TINY = ("--requests", "6", "--output-tokens", "12", "--prompt-tokens", "8")


def simulate(*arguments, tiny=TINY):
    return CliRunner().invoke(app, ["bench", "simulate", *tiny, *arguments])


def test_a_line_for_every_combination(tmp_path):
    path = tmp_path / "figures.json"
    result = simulate(
        *("--policies", "eqspec,exspec", "--batch-sizes", "1,4", "--drafts", "0,1"),
        *("--num-speculative-tokens", "auto", "--num-speculative-tokens", "3"),
        *("--wire-ms", "0,2.5", "--json", str(path)),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    assert len(document["samples"]) == 2 * 2 * 2 * 2 * 2
    plans = [sample["plan"] for sample in document["samples"]]
    assert {plan["costs"]["wire"]["seconds"] for plan in plans} == {0, 0.0025}
    assert all(one["figures"]["requests"]["num_tokens"] == 72 for one in document["samples"])
    assert "service, cpu-pair" in result.output
    assert "rounds, cpu-pair" in result.output


def test_json_goes_to_stdout_alone():
    result = simulate("--policies", "eqspec", "--json", "-")
    assert json.loads(result.stdout)["samples"][0]["plan"]["scheduler"]["policy"] == "eqspec"


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_picture_is_drawn(tmp_path, suffix, head):
    path = tmp_path / f"figures{suffix}"
    result = simulate("--targets", "1,2", "--plot", str(path))
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(head)


def test_a_picture_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = simulate("--plot", "figures.png")
    assert result.exit_code == 2
    assert "pip install 'exspec[plot]'" in result.output


def test_a_trace_of_a_file(tmp_path):
    trace, figures = tmp_path / "trace.jsonl", tmp_path / "figures.json"
    entries = [
        {"arrival_seconds": 5.0, "prompt_tokens": 4, "output_tokens": 3, "priority": 1},
        {"arrival_seconds": 0.0, "prompt_tokens": 4, "output_tokens": 2, "group": "a"},
    ]
    trace.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    result = simulate("--arrivals", f"trace:{trace}", "--json", str(figures))
    assert result.exit_code == 0, result.output
    sample = json.loads(figures.read_text())["samples"][0]
    assert sample["figures"]["requests"]["num_tokens"] == 5
    assert sample["figures"]["requests"]["seconds"] > 5


def test_coefficients_of_a_file_and_changes_of_workers(tmp_path):
    costs, figures = tmp_path / "costs.json", tmp_path / "figures.json"
    costs.write_text('{"verify": {"fixed_seconds": 1.0}, "draft": {"fixed_seconds": 0.5}}')
    result = simulate(
        *("--preset", str(costs), "--policies", "eqspec", "--json", str(figures)),
        *("--change", "0:speed:draft-0:4", "--change", "2:join:draft-1"),
    )
    assert result.exit_code == 0, result.output
    plan = json.loads(figures.read_text())["samples"][0]["plan"]
    assert plan["costs"]["verify"]["fixed_seconds"] == 1.0
    assert [change["worker"] for change in plan["cluster"]["changes"]] == ["draft-0", "draft-1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "nosuch"], "unknown scenario 'nosuch'"),
        (["--policies", "nosuch"], "unknown policy 'nosuch'"),
        (["--preset", "nosuch"], "unknown preset 'nosuch'"),
        (["--preset", "/no/such.json"], "cannot be read"),
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--drafts", "-1"], "--drafts"),
        (["--wire-ms", "x"], "--wire-ms"),
        (["--wire-ms", "inf"], "--wire-ms"),
        (["--change", "1:die"], "--change"),
        (["--change", "x:die:draft-0"], "--change"),
        (["--change", "1:die:nobody"], '"target-N"'),
        (["--arrivals", "trace:/no/such"], "cannot be read"),
        (["--arrivals", "soon"], "--arrivals"),
        (["--num-speculative-tokens", "many"], "many"),
        (["--plot", "figures.pdf"], ".png or .svg"),
        (["--window-size", "2"], "window_size"),
        (["--kv-layout", "paged"], "paged"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    result = simulate(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize("text", ['{"arrival_seconds": "x"}', "[1]", "{", ""])
def test_a_trace_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    result = simulate("--arrivals", f"trace:{path}")
    assert result.exit_code == 2
    assert "trace.jsonl" in "".join(result.output.split())


# Scenarios


def sample_of(num_targets, num_drafts, wire, costs=BY_BATCH):
    plan = {"costs": {"verify": {"fixed_seconds": 0.025}, "wire": {"seconds": wire}}}
    return Sample(RunPlan(costs, num_targets=num_targets, num_drafts=num_drafts), plan, {})


def test_the_bound_is_the_slowest_of_target_drafts_and_round():
    assert round_bound(sample_of(8, 1, 0.001)) == (0.025, "target")
    assert round_bound(sample_of(1, 1, 0.001, BY_ROW)) == (0.025, "target")
    assert round_bound(sample_of(8, 1, 0.001, BY_ROW)) == (0.032, "drafts")
    seconds, what = round_bound(sample_of(8, 8, 0.1))
    assert (seconds, what) == (pytest.approx(0.2145), "round")
    assert expected_tokens(1.0, 5) == 6
    expected = 2 * 16 * expected_tokens(0.7, 5) / 0.025
    assert throughput_bound(sample_of(2, 2, 0.001)) == pytest.approx(expected)


def test_scaling_says_what_was_met():
    study = scaling_study(targets=(1, 2), drafts=(2,), wires=(1.0,), row_drafts_wires=())
    findings = study.read(run_simulations(study.plans))
    assert len(findings.tables[0].rows) == 2
    assert all(len(row) == len(findings.tables[0].columns) for row in findings.tables[0].rows)
    assert [one.is_met for one in findings.expectations] == [True, True, True]
    (chart,) = findings.charts
    assert [line.is_reference for line in chart.lines] == [False, True]


def test_the_paper_in_small():
    study = paper_study(num_requests=6)
    findings = study.read(run_simulations(study.plans))
    assert [len(table.rows) for table in findings.tables] == [20, 6, 12]
    assert all(len(row) == len(t.columns) for t in findings.tables for row in t.rows)
    assert len(findings.charts) == 3


def test_the_cost_of_the_scheduler_is_told():
    study = cost_study(targets=(2,), group_sizes=(16, 32))
    findings = study.read(run_simulations(study.plans))
    (table,) = findings.tables
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert float(table.rows[0][5]) > 0


def test_progress_is_told_by_run():
    seen = []
    plans = [RunPlan(num_requests=2, output_tokens="4")] * 2
    samples = run_simulations(plans, on_progress=lambda run, share: seen.append((run, share)))
    assert len(samples) == 2
    assert (0, 1.0) in seen
    assert seen[-1] == (1, 1.0)


def test_an_error_of_the_simulator_is_ours():
    with pytest.raises(InvalidRequestError, match="unknown policy"):
        run_simulations([RunPlan(policy="nosuch")])


def test_a_simulator_that_does_not_start_is_said(monkeypatch):
    monkeypatch.setattr(simulation_process, "MODULE", "coordinator.no_such_module")
    with pytest.raises(PeerError, match="the simulator"):
        run_simulations([RunPlan()])
