"""Dashboard and alerts ask for metrics that exist, by labels and values that they have."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import yaml

from coordinator import metrics, metrics_vllm
from coordinator.measures import Leaving
from exspec.core.cluster import WorkerState
from exspec.core.ids import Role
from exspec.core.metrics import Metric
from exspec.runtime import worker_metrics
from exspec.runtime.metrics import SNAPSHOT_AGE

COMPOSE = Path(__file__).parents[2] / "compose"
SCRIPT = COMPOSE / "grafana" / "make_dashboard.py"
DASHBOARD = COMPOSE / "grafana" / "dashboards" / "exspec.json"
ALERTS = COMPOSE / "prometheus" / "alerts.yml"

OURS: dict[str, Metric] = {
    name: metric
    for metric in (
        *metrics.METRICS,
        *metrics_vllm.METRICS,
        *worker_metrics.METRICS,
        SNAPSHOT_AGE,
    )
    for name in metric.series_names
}
FROM_ELSEWHERE = {"up", "process_resident_memory_bytes"}
FROM_PROMETHEUS = {"job", "instance", "le"}
VALUES = {
    "role": {role.value for role in Role},
    "state": {state.value for state in WorkerState},
    "reason": {leaving.value for leaving in Leaving},
    "phase": {"queue", "align", "forward", "overhead", "draft", "verify", "worker", "network"},
}

_SELECTOR = re.compile(r"\b([a-z_:][a-z0-9_:]*)\b(?:\{([^}]*)\})?(?!\s*\()")
_RANGE = re.compile(r"\[[^]]*\]")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"(?:by|on|without|group_left)\s*\(([^)]*)\)")
_WORDS = {"and", "or"}


def _dashboard() -> list[tuple[str, str, str]]:
    """Title, expression and legend of every query."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def _alerts() -> list[tuple[str, str, str]]:
    """Name, expression and texts of every alert."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return [(r["alert"], r["expr"], " ".join(r["annotations"].values())) for r in group["rules"]]


QUERIES = [*_dashboard(), *_alerts()]
IDS = [f"{title}-{index}" for index, (title, *_) in enumerate(QUERIES)]


def _selectors(expression: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Every metric asked for, with its label matchers (label, value)."""
    bare = _RANGE.sub("", _GROUPING.sub("", expression))
    found = []
    for name, matchers in _SELECTOR.findall(bare):
        if name in _WORDS:
            continue
        pairs = [(label, value) for label, _, value in _MATCHER.findall(matchers)]
        found.append((name, pairs))
    return found


def _labels(name: str) -> set[str]:
    own = set(OURS[name].labels) if name in OURS else set()
    return own | FROM_PROMETHEUS


def _misfits(expression: str) -> list[str]:
    problems = []
    selectors = _selectors(expression)
    for name, matchers in selectors:
        if name not in OURS and name not in FROM_ELSEWHERE:
            problems.append(f"no metric is called {name}")
            continue
        for label, value in matchers:
            if label not in _labels(name):
                problems.append(f"{name} has no label {label}")
            if label in VALUES and value not in VALUES[label]:
                problems.append(f"{label} is never {value!r}")
    if not problems:
        known = set().union(*(_labels(name) for name, _ in selectors))
        groups = ",".join(_GROUPING.findall(expression)).split(",")
        unknown = {label.strip() for label in groups} - known - {""}
        problems.extend(f"nothing is grouped by {label}" for label in unknown)
    return problems


@pytest.mark.parametrize(("title", "expression", "text"), QUERIES, ids=IDS)
def test_every_query_asks_for_what_exists(title, expression, text):
    assert _selectors(expression), title
    assert _misfits(expression) == []
    assert expression.count("(") == expression.count(")")
    for label in re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text):
        assert any(label in _labels(name) for name, _ in _selectors(expression)), label


@pytest.mark.parametrize(
    "expression",
    [
        "exspec_reqests_waiting",
        "rate(exspec_requests_total{model=~'x'}[1m])".replace("'", '"'),
        "sum by (rolle) (exspec_workers)",
        'exspec_workers{state="redy"}',
        "rate(exspec_time_to_first_token_seconds[1m])",
    ],
)
def test_a_mistake_in_a_query_is_found(expression):
    assert _misfits(expression)


@pytest.mark.parametrize("rate", re.findall(r"(?:rate|increase)\((\w+)", str(QUERIES)))
def test_only_what_grows_has_a_rate(rate):
    assert rate.endswith(("_total", "_bucket", "_sum", "_count"))


def test_the_dashboard_is_what_the_script_writes():
    """Else: python compose/grafana/make_dashboard.py"""
    script = runpy.run_path(str(SCRIPT))
    assert script["main"](["--check"]) == 0


def test_a_stale_dashboard_is_told(monkeypatch, tmp_path, capsys):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["main"].__globals__, "DASHBOARD", tmp_path / "exspec.json")
    assert script["main"](["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert script["main"]([]) == 0
    assert script["main"](["--check"]) == 0
    assert (tmp_path / "exspec.json").read_text() == DASHBOARD.read_text()


def test_the_document_lists_the_metrics_that_there_are():
    """Else: python docs/make_metrics.py"""
    script = runpy.run_path(str(COMPOSE.parent / "docs" / "make_metrics.py"))
    assert script["main"](["--check"]) == 0
    text = script["document"]()
    assert all(f"| `{metric.name}` |" in text for metric in OURS.values())


def test_panels_fill_the_grid_without_overlap():
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_what_must_be_watched_has_a_panel_and_an_alert():
    asked = {name for _, expression, _ in _dashboard() for name, _ in _selectors(expression)}
    assert asked >= {
        "exspec_requests_total",
        "exspec_requests_waiting",
        "exspec_time_to_first_token_seconds_bucket",
        "exspec_time_per_output_token_seconds_bucket",
        "exspec_spec_accepted_tokens_total",
        "exspec_spec_accepted_tokens_per_pos_total",
        "exspec_round_seconds_total",
        "exspec_speedup_predicted",
        "exspec_speedup_measured",
        "exspec_workers",
    }
    assert {name for name, *_ in _alerts()} >= {
        "ExspecNoReadyTarget",
        "ExspecDraftPoolEmpty",
        "ExspecQueueFilling",
        "ExspecWorkerFlapping",
    }
