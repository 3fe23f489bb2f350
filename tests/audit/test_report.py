"""The document holds every difference with its evidence, and is JSON."""

from __future__ import annotations

import json

from exspec.audit import report
from exspec.audit.equality import Answer
from tests.audit.test_compare import REFERENCE, STOPS, FixedJudge, judged, stats

CONDITIONS = report.Conditions(
    dataset="builtin",
    num_prompts=3,
    num_cut_prompts=1,
    max_tokens=4,
    num_in_flight=8,
    is_chat=True,
    stop_token_ids=STOPS,
    model="target",
    served_dtype="float32",
    reference_dtype="float32",
    draft_models=("draft",),
    kv_layouts=("padded",),
    num_target_slots=8,
    rows_per_round=2.5,
    policy="eqspec",
    speculation="auto",
    num_tokens=12,
    served_seconds=2.0,
)


def make_report(*answers, judge=None):
    return report.EqualityReport(CONDITIONS, judged(list(answers), judge=judge))


def test_a_difference_comes_with_all_there_is_to_know():
    answers = [Answer(REFERENCE, stats()), Answer((10, 11, 13), stats())]
    document = report.as_document([make_report(*answers)])
    document = json.loads(json.dumps(document))
    assert document["verdict"] == "FAIL"
    (audit,) = document["audits"]
    assert (audit["exact_match"], audit["num_differences"], audit["num_ties"]) == (0.5, 1, 0)
    assert audit["acceptance_length"] == 2.5
    assert audit["conditions"]["kv_layouts"] == ["padded"]
    (finding,) = audit["differences"]
    assert finding["index"] == 1
    assert finding["comparison"]["difference"] == {
        "kind": "other_token",
        "position": 2,
        "reference_token": 12,
        "served_token": 13,
    }
    assert finding["evidence"]["bound"] == 2e-4
    assert finding["is_tie"] is False


def test_rows_fit_their_columns():
    answers = [
        Answer((*REFERENCE, 7), stats()),
        Answer((10, 11, 13), stats()),
        Answer((), stats(), error="QueueFullError: full"),
    ]
    made = make_report(*answers, judge=FixedJudge(served_gap=0.0))
    assert len(report.summary_row(made)) == len(report.SUMMARY_COLUMNS)
    rows = report.difference_rows(made)
    assert [len(row) for row in rows] == [len(report.DIFFERENCE_COLUMNS)] * 3
    assert [row[-1] for row in rows] == ["NO", "yes", ""]
    assert rows[0][:5] == ("padded", "0 (q0)", "goes_on_after_stop_token", "4", "(none)")
    assert "QueueFullError" in rows[2][2]


def test_all_audits_must_pass():
    good, bad = make_report(Answer(REFERENCE, stats())), make_report(Answer((), stats()))
    assert report.as_document([good, good])["verdict"] == "PASS"
    assert report.as_document([good, bad])["verdict"] == "FAIL"


def test_the_heading_says_how_it_was_run():
    heading = report.heading(make_report(Answer(REFERENCE, stats())))
    for words in ("3 prompts (1 cut to fit)", "K = auto", "8 requests in flight", "batch 1"):
        assert words in heading
