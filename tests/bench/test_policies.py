"""Policies side by side: which clusters, what is computed of their runs, what was expected."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from typer.testing import CliRunner

from exspec.bench import report_runs
from exspec.bench.arguments import policies_of, speculations_of
from exspec.bench.policies import YARDSTICK, configurations_of, expectations, window_of
from exspec.bench.runs import (
    WARM_UP_TOKENS,
    Configuration,
    RunPlan,
    Runs,
    RunSample,
    measure_run,
    percentile,
    run_all,
)
from exspec.cli.main import app
from exspec.client.fake import FakeCoordinator
from exspec.core.cluster import ClusterStatus, Totals
from exspec.core.errors import InvalidRequestError, WorkerLostError
from exspec.core.ids import Role
from tests.cli.stubs import StubPlan

TOTALS = Totals(
    num_rounds=10,
    num_row_rounds=40,
    num_draft_tokens=80,
    num_accepted_tokens=60,
    num_grouped_rounds=4,
    num_moved_rows=15,
    round_seconds=2.0,
    align_seconds=0.1,
)
STATUS = ClusterStatus("v", is_ready=True, model="m", policy="p", window_size=32)


def sample(seconds=2.0, p99=3.0, tokens=((1, 2), (3, 4))):
    return RunSample(seconds, tokens, (1.0, p99), TOTALS, STATUS)


def eqspec(size, k="5"):
    return Configuration("eqspec", size, k)


def exspec(size, k="5"):
    return Configuration("exspec", size, k)


def test_plain_decoding_at_one_comes_first_and_every_policy_has_its_own_k():
    found = configurations_of(("eqspec", "exspec"), (4, 8), {"eqspec": ("5",), "exspec": ("auto",)})
    assert [(one.policy, one.batch_size, one.speculation) for one in found] == [
        ("plain", 1, "0"),
        ("plain", 4, "0"),
        ("plain", 8, "0"),
        ("eqspec", 4, "5"),
        ("eqspec", 8, "5"),
        ("exspec", 4, "auto"),
        ("exspec", 8, "auto"),
    ]
    assert configurations_of((), (1, 2), {})[0] == YARDSTICK
    assert len(configurations_of((), (1, 2), {})) == 2


@pytest.mark.parametrize(
    ("policy", "size", "own", "window"),
    [
        ("plain", 8, 32, 8),
        ("eqspec", 8, 32, 8),
        ("eqspec-static", 8, None, 8),
        ("exspec-paper", 4, None, 32),
        ("exspec-paper", 16, None, 64),
        ("exspec-paper", 4, 24, 24),
        ("exspec", 4, None, None),
        ("exspec", 4, 24, 24),
        ("exspec", 32, 24, 32),
    ],
)
def test_windows(policy, size, own, window):
    assert window_of(policy, size, own) == window


def test_lists_of_policies_and_of_what_they_are_run_with():
    assert policies_of("exspec, eqspec,exspec") == ("exspec", "eqspec")
    with pytest.raises(InvalidRequestError, match="unknown policy 'fifo'"):
        policies_of("exspec,fifo")
    both = ("eqspec", "exspec")
    assert speculations_of(["auto,5"], both) == {"eqspec": ("auto", "5"), "exspec": ("auto", "5")}
    table = "[[1,4,5],[5,64,0]]"
    given = speculations_of(["5", f"exspec=auto:8, {table},2"], both)
    assert given == {"eqspec": ("5",), "exspec": ("auto:8", table, "2")}
    for texts, words in (
        (["fifo=5"], "unknown policy"),
        (["5,,2"], "K,K"),
        (["exspec="], "K,K"),
        (["exspec=5"], "nothing about eqspec"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            speculations_of(texts, both)


def test_percentiles_lie_between_neighbours():
    assert percentile([], 0.5) == 0.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert percentile([1.0, 2.0, 3.0], 1.0) == 3.0


def test_runs_go_in_turns_and_one_that_fails_fails_alone():
    one, other = eqspec(1), exspec(1)
    order, told, runs = [], [], Runs()

    def measure(configuration):
        order.append(configuration)
        if len(order) == 2:
            raise WorkerLostError("gone")
        return sample(seconds=len(order))

    run_all((one, other), 2, measure, runs, lambda *seen: told.append(report_runs.run_line(*seen)))
    assert order == [one, other, one, other]
    assert [len(runs.samples[key]) for key in (one, other)] == [2, 1]
    assert [failure.reason for failure in runs.failures] == ["WorkerLostError: gone"]
    assert told[1] == "FAILED  exspec, B = 1, K = 5: WorkerLostError: gone"
    assert told[0] == "eqspec, B = 1, K = 5: 4.0 tokens/s"
    assert runs.figure(one, lambda made: made.seconds) == 2.0
    assert runs.figure(eqspec(2), lambda made: made.seconds) is None
    with pytest.raises(InvalidRequestError, match="repeat"):
        run_all((one,), 0, measure, runs, lambda *_: None)


def runs_of(figures):
    return Runs({one: [sample(*figure)] for one, figure in figures.items()})


def test_expectations_compare_what_was_measured():
    runs = runs_of(
        {
            YARDSTICK: (8.0, 9.0),
            Configuration("plain", 8, "0"): (2.0, 9.0),
            exspec(1): (6.0, 9.0),
            eqspec(8): (1.0, 2.0),
            exspec(8): (1.5, 3.0),
            exspec(8, "auto"): (1.6, 3.0),
        }
    )
    found = [(one.text, round(one.measured, 3), one.is_met) for one in expectations(runs)]
    assert found == [
        ("exspec, B = 8, K = 5: at least 3 x its own speed at B = 1", 4.0, True),
        ("exspec, B = 8, K = 5: P99 latency at most 1.3 x that of eqspec", 1.497, False),
        (
            "exspec, B = 8, K = auto: at least 0.97 x the best of plain and fixed K (K = 5)",
            0.938,
            False,
        ),
    ]
    lines = report_runs.expectation_lines(runs)
    assert lines[0][0].startswith("met     exspec")
    assert lines[1] == (f"MISSED  {found[1][0]}: measured 1.50", False)


def test_auto_is_compared_with_plain_decoding_where_that_is_best():
    plain, auto = Configuration("plain", 8, "0"), exspec(8, "auto")
    runs = runs_of({plain: (1.0, 1.0), exspec(8): (2.0, 1.0), auto: (1.0, 1.0)})
    (found,) = expectations(runs)
    assert (found.text.endswith("(plain)"), found.is_met) == (True, True)
    assert expectations(runs_of({auto: (1.0, 1.0)})) == []


def test_rows_fit_their_columns_and_say_what_is_not_known():
    runs = runs_of({exspec(8): (2.0, 3.0)})
    (row,) = report_runs.policies_rows(runs)
    assert len(row) == len(report_runs.POLICIES_COLUMNS)
    cells = dict(zip(report_runs.POLICIES_COLUMNS, row, strict=True))
    assert (cells["x plain\nB = 1"], cells["x plain\nsame B"], cells["identical"]) == ("-",) * 3
    assert (cells["grouped"], cells["align"], cells["rows/\nround"]) == ("40.0%", "5.00%", "4.00")
    assert (cells["accept.\nlength"], cells["mean\nK"], cells["window"]) == ("2.50", "2.00", "32")
    runs.samples[YARDSTICK] = [sample(4.0, 1.0, ((1, 2), (3, 5)))]
    row = report_runs.policies_rows(runs)[0]
    assert (row[5], row[-1]) == ("2.00", "1/2")
    assert len(report_runs.grouping_rows(runs)[0]) == len(report_runs.GROUPING_COLUMNS)


def test_the_document_holds_medians_single_runs_and_failures():
    runs = Runs({YARDSTICK: [sample(1.0), sample(4.0), sample(2.0)]})
    document = json.loads(json.dumps(report_runs.policies_dict({"dataset": "d"}, runs)))
    (one,) = document["configurations"]
    assert one["median"]["seconds"] == 2.0
    assert [run["seconds"] for run in one["runs"]] == [1.0, 4.0, 2.0]
    assert document["identical"][0]["num_identical"] == 2
    assert document["plan"] == {"dataset": "d"}
    assert document["failures"] == []


def test_charts_have_a_line_per_policy_and_setting():
    runs = runs_of({exspec(8): (1.0, 3.0), exspec(1): (2.0, 3.0), eqspec(1): (2.0, 3.0)})
    speed, latency = report_runs.policies_charts(runs)
    assert [line.name for line in speed.lines] == ["exspec, K = 5", "eqspec, K = 5"]
    assert (speed.lines[0].xs, speed.lines[0].ys) == ((1, 8), (2.0, 4.0))
    assert latency.y_label == "s"


def test_a_run_is_warmed_up_and_only_the_rest_is_counted():
    with FakeCoordinator(default_text="okay") as fake:
        before = replace(fake.status, totals=Totals(num_rounds=3))
        fake.status = before
        done = []
        prompts = [(1,), (2,), (3,)]
        made = measure_run(fake.address, prompts, RunPlan(3, 1), 1, lambda: done.append(1))
        requests = fake.requests
    assert made.token_ids == (tuple(b"oka"),) * 3
    assert len(made.latency_seconds) == len(done) == 3
    assert made.latency(1.0) <= made.seconds
    assert made.totals == Totals()
    assert [request.sampling.max_tokens for request in requests] == [24] * 4 + [3] * 3
    assert all(request.sampling.ignore_eos for request in requests)
    assert made.tokens_per_second == pytest.approx(9 / made.seconds)


def test_answers_may_end_where_they_end():
    with FakeCoordinator(default_text="okay") as fake:
        measure_run(fake.address, [(1,)], RunPlan(3, ignore_eos=False), 1)
        assert not any(request.sampling.ignore_eos for request in fake.requests)


def test_what_the_draft_is_told_reaches_every_cluster_that_has_one(monkeypatch):
    told = []

    def note(plan, role, *names):
        told.append((plan.num_speculative_tokens, role, plan.lookup, plan.draft_vocab))
        assert plan.max_model_len >= 256 + WARM_UP_TOKENS
        return StubPlan.worker_command(plan, role, *names)

    noting = type("NotingPlan", (StubPlan,), {"__slots__": (), "worker_command": note})
    monkeypatch.setattr("exspec.cli.cluster_plan.ClusterPlan", noting)
    result = invoke(
        "policies", "--policies", "exspec", "--batch-sizes", "1", "--speculation", "auto",
        "--num-prompts", "1", "--max-tokens", "2", "--lookup", "off", "--draft-vocab", "64",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [one for one in told if one[1] is Role.DRAFT] == [("auto", Role.DRAFT, "off", "64")]


@dataclass(frozen=True, slots=True)
class BrokenPaperPlan(StubPlan):
    """Clusters of stubs; those with the paper's policy do not start."""

    def worker_command(self, role: Role, name, coordinator, port_file):
        kinds = ((name, "dies"),) if self.policy == "exspec-paper" else ()
        plan = replace(self, kinds=kinds, policy=None)
        return StubPlan.worker_command(plan, role, name, coordinator, port_file)


@dataclass(frozen=True, slots=True)
class InterruptedPlan(StubPlan):
    """Clusters of stubs; Ctrl-C comes when the first one with a policy to compare would start."""

    def coordinator_command(self, port_file):
        if self.policy == "exspec":
            raise KeyboardInterrupt
        return StubPlan.coordinator_command(self, port_file)


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_a_configuration_that_fails_does_not_lose_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("exspec.cli.cluster_plan.ClusterPlan", BrokenPaperPlan)
    result = invoke(
        "policies", "--policies", "exspec-paper,exspec", "--batch-sizes", "1", "--speculation", "5",
        "--num-prompts", "2", "--max-tokens", "2", "--json", str(tmp_path / "j.json"),
        "--plot", str(tmp_path / "p.svg"),
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    document = json.loads((tmp_path / "j.json").read_text())
    assert [one["policy"] for one in document["configurations"]] == ["plain", "exspec"]
    (failure,) = document["failures"]
    assert "ended with exit code 3" in failure["reason"]
    assert failure["reason"] in result.stdout.replace("\n", " ")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    assert {one["num_identical"] for one in document["identical"]} == {2}


def test_what_was_measured_before_an_interrupt_is_told(monkeypatch):
    monkeypatch.setattr("exspec.cli.cluster_plan.ClusterPlan", InterruptedPlan)
    result = invoke(
        "policies", "--policies", "exspec", "--batch-sizes", "1", "--speculation", "5",
        "--num-prompts", "2", "--max-tokens", "2",
    )  # fmt: skip
    assert result.exit_code == 130
    assert "2/2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["policies", "--policies", "fifo"], "unknown policy 'fifo'"),
        (["policies", "--speculation", "exspec=5"], "nothing about eqspec"),
        (["policies", "--batch-sizes", "0"], "--batch-sizes"),
        (["policies", "--plot", "picture.txt"], "--plot"),
        (["policies", "--dataset", "lines:/does/not/exist"], "/does/not/exist"),
        (["grouping", "--dataset", "lines:/does/not/exist"], "/does/not/exist"),
        (["grouping"], "dataset"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
