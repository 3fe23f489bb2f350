"""Drafts compared: which are meant, what is counted, what drafting costs, what is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from exspec.bench import draft_steps
from exspec.bench import report_drafts as report
from exspec.bench.draft_steps import LONG_TOKENS, NUM_PROMPTS, NUM_REPEATS, StepCost, measure_steps
from exspec.bench.drafts import (
    DraftAnswer,
    DraftChoice,
    DraftSample,
    DraftsPlan,
    DraftsRuns,
    draft_of,
    folded,
)
from exspec.cli.main import app
from exspec.client.fake import FakeCoordinator, FakeReply
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import SpeculationStats
from exspec.core.ids import Role
from tests.cli.stubs import StubPlan

PLAN = DraftsPlan(3, 8, 2)
COST = StepCost(0.050, 0.004)
NOTHING_LATE = Totals()


def answer(category, num_tokens, accepted, *, num_rounds, num_looked_up=0):
    stats = SpeculationStats(
        num_rounds=num_rounds,
        num_accepted_tokens=sum(accepted),
        num_accepted_per_position=accepted,
        num_accepted_looked_up_tokens=num_looked_up,
    )
    return DraftAnswer(category, tuple(range(num_tokens)), stats)


ANSWERS = (
    answer("qa", 11, (3, 1), num_rounds=7, num_looked_up=1),
    answer("rag", 1, (), num_rounds=1),
    answer("qa", 7, (2, 1, 1), num_rounds=3),
)


def runs_of(*samples, plain=tuple(one.token_ids for one in ANSWERS)):
    return DraftsRuns(PLAN, plain, list(samples))


def sample(name="m", totals=NOTHING_LATE):
    return DraftSample(draft_of(name), ANSWERS, COST, totals)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ngram", DraftChoice("ngram", "ngram")),
        ("m", DraftChoice("m", "m", "off")),
        ("owner/m+lookup", DraftChoice("owner/m+lookup", "owner/m", "beside")),
        ("m+vocab=64", DraftChoice("m+vocab=64", "m", "off", "64")),
        ("m+lookup+vocab=i.json", DraftChoice("m+lookup+vocab=i.json", "m", "beside", "i.json")),
        ("m+vocab=all+lookup", DraftChoice("m+vocab=all+lookup", "m", "beside", "all")),
        ("c++", DraftChoice("c++", "c++", "off")),
    ],
)
def test_a_draft_is_a_model_with_what_it_is_to_have(name, expected):
    assert draft_of(name) == expected


@pytest.mark.parametrize("name", ["", "+lookup", "ngram+lookup", "ngram+vocab=3"])
def test_what_is_no_draft_is_refused(name):
    with pytest.raises(InvalidRequestError, match="a draft is") as caught:
        draft_of(name)
    assert caught.value.field == "draft"


def test_the_categories_of_mt_bench_are_one():
    assert [folded(one) for one in ("writing", "math", "stem")] == ["mt_bench"] * 3
    assert [folded(one) for one in ("math_reasoning", "qa", "")] == ["math_reasoning", "qa", ""]


def test_the_first_token_and_its_pass_do_not_count():
    """11 and 7 tokens in 7 and 3 rounds; the request of one token had no round of its own."""
    runs = runs_of(sample())
    tally = runs.tally(runs.samples[0])
    assert (tally.num_tokens, tally.num_rounds) == (16, 8)
    assert tally.acceptance_length == 2.0
    assert tally.num_accepted == (5, 2, 1)
    assert tally.rates == (5 / 8, 2 / 8, 1 / 8)
    assert 1 + sum(tally.rates) == tally.acceptance_length
    assert tally.looked_up_share == 1 / 8
    assert tally.num_identical == tally.num_requests == 3


def test_a_category_has_its_own_sums_and_one_without_rounds_has_none():
    runs = runs_of(sample())
    (only,) = runs.samples
    assert runs.categories == ("qa", "rag", "all")
    assert runs.tally(only, "qa").acceptance_length == 2.0
    nothing = runs.tally(only, "rag")
    assert (nothing.acceptance_length, nothing.rates, nothing.looked_up_share) == (0, (0, 0, 0), 0)


def test_outputs_are_compared_request_by_request():
    plain = (ANSWERS[0].token_ids, (9,), ANSWERS[2].token_ids)
    runs = runs_of(sample(), plain=plain)
    assert runs.tally(runs.samples[0]).num_identical == 2
    assert runs.tally(runs.samples[0], "rag").num_identical == 0
    assert ("m: 1 outputs are not those of plain", False) in report.drafts_lines(runs)
    unknown = runs_of(sample(), plain=None)
    assert unknown.tally(unknown.samples[0]).num_identical is None
    assert report.category_rows(unknown)[0][-1] == "-/2"


def test_requests_are_greedy_with_so_many_drafts_and_plain_ones_with_none():
    stats = SpeculationStats(3, 6, 2, 1, (2, 2, 2), (1, 1, 0))
    with FakeCoordinator() as fake:
        fake.script(*[FakeReply("okay", speculation=stats)] * 4)
        runs = DraftsRuns(PLAN)
        done = []
        prompts = [("a", (1, 2)), ("b", (3,))]
        runs.measure_plain(fake.address, [tokens for _, tokens in prompts])
        runs.measure(fake.address, draft_of("m"), prompts, COST, lambda: done.append(1))
        asked = fake.requests
    assert [one.speculation.num_speculative_tokens for one in asked] == [0, 0, 3, 3]
    assert all(one.sampling.temperature == 0 and not one.sampling.ignore_eos for one in asked)
    assert len(done) == 2
    assert [one.category for one in runs.samples[0].answers] == ["a", "b"]
    tally = runs.tally(runs.samples[0])
    assert (tally.num_tokens, tally.num_rounds, tally.num_accepted) == (6, 4, (2, 2, 0))
    assert tally.num_identical == 2


class TimedClient:
    """Its cluster's passes take times of their own: 1 s for a prompt, 0.1 s a pass, and so on.

    Every second run of a kind is ten times slower, and every round accepts one draft token.
    """

    def __init__(self, _address):
        self.totals = Totals()
        self.num_runs = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cluster_status(self):
        return SimpleNamespace(totals=self.totals)

    def generate(self, prompt, *, max_tokens, ignore_eos, num_speculative_tokens):
        assert ignore_eos
        slow = 10 if self.num_runs // (4 * NUM_PROMPTS) == 1 else 1
        self.num_runs += 1
        num_rounds = max_tokens if not num_speculative_tokens else 1 + (max_tokens - 1) // 2
        num_drafts = (num_rounds - 1) * num_speculative_tokens
        self.totals = replace(
            self.totals,
            num_rounds=self.totals.num_rounds + num_rounds,
            num_draft_tokens=self.totals.num_draft_tokens + num_drafts,
            verify_seconds=self.totals.verify_seconds + slow * (1 + 0.1 * (num_rounds - 1)),
            draft_seconds=self.totals.draft_seconds + slow * (0.5 + 0.02 * num_drafts)
            if num_drafts
            else self.totals.draft_seconds,
        )


def test_costs_are_per_step_without_the_prompt_and_the_fastest_counts(monkeypatch):
    monkeypatch.setattr(draft_steps, "Client", TimedClient)
    done = []
    cost = measure_steps("a", [(1,), (2,), (3,)], 5, lambda: done.append(1))
    assert len(done) == 4 * NUM_PROMPTS * NUM_REPEATS
    assert LONG_TOKENS > 2
    assert cost.plain_seconds == pytest.approx(0.1)
    assert cost.draft_seconds == pytest.approx(0.02)
    assert cost.share == pytest.approx(0.2)


def test_a_cluster_that_drafts_nothing_has_no_cost_per_token(monkeypatch):
    monkeypatch.setattr(draft_steps, "Client", TimedClient)
    cost = measure_steps("a", [(1,)], 0)
    assert cost.draft_seconds is None
    assert cost.share is None
    runs = runs_of(replace(sample(), cost=cost))
    assert report.draft_rows(runs)[0][2:5] == ("-", "100.00", "-")


def test_a_row_for_every_category_and_draft_and_one_for_every_draft():
    late = Totals(num_overdue_drafts=2, num_draft_failures=1)
    runs = runs_of(sample("m"), sample("m+lookup", totals=late))
    runs.failures["x"] = "it died"
    rows = report.category_rows(runs)
    assert [row[:2] for row in rows] == [
        (category, name) for category in ("qa", "rag", "all") for name in ("m", "m+lookup")
    ]
    assert rows[0][2:] == ("2", "16", "2.00", "62 25 12 %", "12%", "2/2")
    assert {len(row) for row in rows} == {len(report.CATEGORY_COLUMNS)}
    assert report.draft_rows(runs) == [
        ("m", "2.00", "4.00", "50.00", "8.0%", "0"),
        ("m+lookup", "2.00", "4.00", "50.00", "8.0%", "3"),
    ]
    assert len(report.DRAFT_COLUMNS) == 6
    bad = [line for line, is_good in report.drafts_lines(runs) if not is_good]
    assert len(bad) == 2
    assert "3 draft batches came too late" in bad[0]
    assert bad[1] == "FAILED  x: it died"
    document = json.loads(json.dumps(report.drafts_dict({}, runs)))
    assert document["drafts"][1]["lookup"] == "beside"
    assert document["drafts"][1]["categories"]["qa"]["acceptance_length"] == 2.0
    assert set(document["drafts"][0]["categories"]) == {"qa", "rag"}
    assert document["drafts"][0]["cost"]["share"] == pytest.approx(0.08)
    assert document["failures"] == {"x": "it died"}


@dataclass(frozen=True, slots=True)
class BrokenDraftPlan(StubPlan):
    """Clusters of stubs; a draft worker without look-up does not start."""

    def worker_command(self, role: Role, name, coordinator, port_file):
        is_broken = role is Role.DRAFT and self.lookup == "off"
        plan = replace(self, kinds=((name, "dies"),) if is_broken else ())
        return StubPlan.worker_command(plan, role, name, coordinator, port_file)


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", "drafts", *arguments])


def test_a_draft_that_fails_does_not_lose_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("exspec.cli.cluster_plan.ClusterPlan", BrokenDraftPlan)
    lines = [{"question_id": i, "category": c, "turns": [f"turn {i}"]}
             for i, c in enumerate(("writing", "writing", "math", "qa", "qa"))]  # fmt: skip
    dataset = tmp_path / "question.jsonl"
    dataset.write_text("\n".join(map(json.dumps, lines)))
    to = tmp_path / "j.json"
    result = invoke(
        "--draft", "m", "--draft", "m+lookup", "--dataset", f"spec_bench:{dataset}",
        "--num-prompts", "4", "--max-tokens", "2", "--json", str(to),
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    document = json.loads(to.read_text())
    (failure,) = document["failures"].items()
    assert failure[0] == "m"
    assert "ended with exit code 3" in failure[1]
    (draft,) = document["drafts"]
    assert draft["name"] == "m+lookup"
    counts = {name: one["num_requests"] for name, one in draft["categories"].items()}
    assert counts == {"mt_bench": 2, "qa": 2}
    assert draft["num_identical"] == 4
    assert "mt_bench" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--draft"),
        (("--draft", "ngram+lookup"), "a draft is"),
        (("--draft", "m", "--max-tokens", "1"), "--max-tokens"),
        (("--draft", "m", "--num-speculative-tokens", "0"), "--num-speculative-tokens"),
        (("--draft", "m", "--dataset", "lines:/does/not/exist"), "/does/not/exist"),
        (("--draft", "m", "--num-prompts", "100000"), "100000 were asked for"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_plans_that_measure_nothing_are_refused():
    with pytest.raises(InvalidRequestError, match="draft token"):
        DraftsPlan(0, 8, 1)
    with pytest.raises(InvalidRequestError, match="at least two"):
        DraftsPlan(3, 1, 1)
