"""Writes dashboards/exspec.json, so that the dashboard is read and reviewed here.

    python compose/grafana/make_dashboard.py            # write it
    python compose/grafana/make_dashboard.py --check    # 1 if it is not what this would write

Standard library only. `tests/observability` checks that every metric queried here exists.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parent / "dashboards" / "exspec.json"

WIDTH = 24
HERE = '{model_name=~"$model_name"}'
RATE = "[$__rate_interval]"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """One PromQL expression; `legend` may name labels as {{label}}."""

    expression: str
    legend: str = "__auto"
    is_instant: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel; `options` and `custom` go into Grafana's JSON as they are."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    defaults: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A headline and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


# Expressions


def rate(name: str, by: str = "model_name", where: str = HERE) -> str:
    """How much a counter grows per second."""
    return f"sum by ({by}) (rate({name}{where}{RATE}))"


def ratio(part: str, whole: str) -> str:
    """Nothing rather than a division by zero."""
    return f"{part} / ({whole} > 0)"


def quantiles(name: str, by: str = "model_name", where: str = HERE) -> tuple[Query, ...]:
    """Median, p95 and p99 of a histogram."""
    buckets = rate(f"{name}_bucket", f"le, {by}", where)
    return tuple(
        Query(f"histogram_quantile({share}, {buckets})", f"{{{{{by}}}}} p{share[2:].ljust(2, '0')}")
        for share in ("0.5", "0.95", "0.99")
    )


ACCEPTED = rate("exspec_spec_accepted_tokens_total")
DRAFTED = rate("exspec_spec_draft_tokens_total")
ROW_ROUNDS = rate("exspec_spec_row_rounds_total")
ACCEPTANCE_RATE = ratio(ACCEPTED, DRAFTED)
ACCEPTANCE_LENGTH = f"1 + {ratio(ACCEPTED, ROW_ROUNDS)}"
ALL_ROUNDS = f"sum(rate(exspec_spec_rounds_total{HERE}{RATE}))"
TOKENS = rate("exspec_generation_tokens_total")


# Panels


def stat(title: str, description: str, expression: str, unit: str = "short") -> Panel:
    """One number of now."""
    return Panel(title, description, (Query(expression),), "stat", unit, width=3, height=4)


def ready(role: str) -> str:
    """Workers that take rows."""
    return f'sum(exspec_workers{{role="{role}", state="ready", model_name=~"$model_name"}})'


NOW = Row(
    "Now",
    (
        stat("Ready targets", "Targets that take requests.", ready("target")),
        stat("Ready drafts", "Draft workers that propose tokens.", ready("draft")),
        stat("Running", "Requests that have a place.", f"sum(exspec_requests_running{HERE})"),
        stat("Waiting", "Requests that wait for one.", f"sum(exspec_requests_waiting{HERE})"),
        stat("Tokens / s", "Tokens committed.", f"sum({TOKENS})"),
        stat("Acceptance rate", "Of the draft tokens.", ACCEPTANCE_RATE, "percentunit"),
        stat("Acceptance length", "Tokens a row gets per round.", ACCEPTANCE_LENGTH),
        stat(
            "Speed-up",
            "Tokens per second over plain decoding, as measured; 0 while not known.",
            f"exspec_speedup_measured{HERE}",
        ),
    ),
)

REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Requests / s",
            "Accepted, and how they ended.",
            (
                Query(rate("exspec_requests_total"), "{{model_name}} accepted"),
                Query(
                    rate("exspec_request_success_total", "model_name, finished_reason"),
                    "{{model_name}} {{finished_reason}}",
                ),
                Query(rate("exspec_request_failures_total"), "{{model_name}} failed"),
            ),
            unit="reqps",
        ),
        Panel(
            "Queue",
            "Requests that wait, requests that run, and how many may wait.",
            (
                Query(f"exspec_requests_waiting{HERE}", "{{model_name}} waiting"),
                Query(f"exspec_requests_running{HERE}", "{{model_name}} running"),
                Query("max(exspec_requests_waiting_limit)", "may wait"),
            ),
        ),
        Panel(
            "Tokens / s",
            "Prompt tokens of accepted requests, and tokens committed.",
            (
                Query(rate("exspec_prompt_tokens_total"), "{{model_name}} prompt"),
                Query(TOKENS, "{{model_name}} generated"),
            ),
        ),
        Panel(
            "Time to first token",
            "From a request's arrival, the queue included.",
            quantiles("exspec_time_to_first_token_seconds"),
            unit="s",
            width=6,
        ),
        Panel(
            "Time per output token",
            "Mean of each request, without its first token.",
            quantiles("exspec_time_per_output_token_seconds"),
            unit="s",
            width=6,
        ),
        Panel(
            "End to end",
            "From a request's arrival to its end.",
            quantiles("exspec_e2e_request_latency_seconds"),
            unit="s",
            width=6,
        ),
        Panel(
            "Time in the queue",
            "From a request's arrival to its first pass.",
            quantiles("exspec_request_queue_time_seconds"),
            unit="s",
            width=6,
        ),
    ),
)

SPECULATION = Row(
    "Speculation",
    (
        Panel(
            "Acceptance rate",
            "Share of the verified draft tokens that the target agreed with.",
            (Query(ACCEPTANCE_RATE, "{{model_name}}"),),
            unit="percentunit",
            defaults={"min": 0, "max": 1},
        ),
        Panel(
            "Acceptance length",
            "Tokens a row gets per round, the bonus token included; rows without drafts count.",
            (Query(ACCEPTANCE_LENGTH, "{{model_name}}"),),
            defaults={"min": 1, "decimals": 2},
        ),
        Panel(
            "Acceptance by position",
            "Share of the draft tokens at each place (from 0) that were accepted.",
            (
                Query(
                    ratio(
                        rate("exspec_spec_accepted_tokens_per_pos_total", "position"),
                        rate("exspec_spec_draft_tokens_per_pos_total", "position"),
                    ),
                    "{{position}}",
                    is_instant=True,
                ),
            ),
            kind="bargauge",
            unit="percentunit",
            defaults={"min": 0, "max": 1},
        ),
        Panel(
            "Draft tokens per row",
            "How far rows drafted, plain ones included; and the share of rows without drafts.",
            (
                Query(ratio(DRAFTED, ROW_ROUNDS), "{{model_name}} tokens"),
                Query(
                    ratio(rate("exspec_spec_plain_row_rounds_total"), ROW_ROUNDS),
                    "{{model_name}} share of plain rows",
                ),
            ),
        ),
        Panel(
            "Speed-up",
            "Tokens per second over plain decoding: as the cost model predicts, and as measured.",
            (
                Query(f"exspec_speedup_predicted{HERE} > 0", "{{model_name}} predicted"),
                Query(f"exspec_speedup_measured{HERE} > 0", "{{model_name}} measured"),
            ),
            defaults={"decimals": 2},
        ),
        Panel(
            "Drafts that brought nothing",
            "Draft batches not waited for any longer, and those lost with their worker.",
            (
                Query(rate("exspec_overdue_drafts_total"), "{{model_name}} overdue"),
                Query(rate("exspec_draft_failures_total"), "{{model_name}} lost"),
            ),
            unit="ops",
        ),
    ),
)

ROUNDS = Row(
    "Rounds",
    (
        Panel(
            "Where a round's time goes",
            "Seconds per round by phase. Groups of rows overlap, so drafting may be hidden.",
            (
                Query(
                    rate("exspec_round_seconds_total", "phase")
                    + f" / on () group_left () ({ALL_ROUNDS} > 0)",
                    "{{phase}}",
                ),
            ),
            unit="s",
            custom={"stacking": {"mode": "normal"}, "fillOpacity": 40},
        ),
        Panel(
            "Rows per round",
            "Rows a verify batch decided something for, and rows whose KV was moved.",
            (
                Query(ratio(ROW_ROUNDS, rate("exspec_spec_rounds_total")), "{{model_name}} rows"),
                Query(
                    ratio(rate("exspec_moved_rows_total"), rate("exspec_spec_rounds_total")),
                    "{{model_name}} moved",
                ),
            ),
        ),
        Panel(
            "Pass time by role",
            "A batch with rows, on the workers' own clocks.",
            quantiles("exspec_worker_pass_seconds", "role", ""),
            unit="s",
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        Panel(
            "Workers by state",
            "As the coordinator sees them; lost and refused ones are remembered.",
            (Query(f"sum by (role, state) (exspec_workers{HERE}) > 0", "{{role}} {{state}}"),),
        ),
        Panel(
            "Silence",
            "Since each worker's last sign of life.",
            (Query("exspec_worker_heartbeat_age_seconds", "{{worker}}"),),
            unit="s",
        ),
        Panel(
            "Connections that ended, sequences that moved",
            "In five minutes.",
            (
                Query(
                    f"sum by (model_name) (increase(exspec_worker_departures_total{HERE}[5m]))",
                    "{{model_name}} connections",
                ),
                Query(
                    f"sum by (reason) (increase(exspec_session_migrations_total{HERE}[5m]))",
                    "sequences, {{reason}}",
                ),
            ),
        ),
        Panel(
            "Slots taken",
            "Sequences a worker holds, of those it can.",
            (
                Query(
                    ratio("exspec_worker_sequences", "exspec_worker_slots"),
                    "{{role}} {{instance}}",
                ),
            ),
            unit="percentunit",
            defaults={"min": 0, "max": 1},
            width=6,
        ),
        Panel(
            "Tokens fed / s",
            "Through each worker's model.",
            (
                Query(
                    rate("exspec_worker_tokens_total", "role, instance", ""),
                    "{{role}} {{instance}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Busy",
            "Share of the time in which a worker's model runs.",
            (
                Query(
                    rate(
                        "exspec_worker_phase_seconds_total",
                        "role, instance",
                        '{phase!="queue"}',
                    ),
                    "{{role}} {{instance}}",
                ),
            ),
            unit="percentunit",
            width=6,
        ),
        Panel(
            "Memory",
            "Resident, of each process; and what is preallocated for KV.",
            (
                Query('process_resident_memory_bytes{job=~"exspec-.*"}', "{{job}} {{instance}}"),
                Query("exspec_worker_kv_bytes", "KV {{role}} {{instance}}"),
            ),
            unit="bytes",
            width=6,
        ),
    ),
)

ROWS = (NOW, REQUESTS, SPECULATION, ROUNDS, WORKERS)


# Grafana's JSON


def dashboard() -> dict[str, Any]:
    """The whole file."""
    return {
        "uid": "exspec",
        "title": "exspec",
        "description": "A cluster of exspec: requests, speculation, rounds and workers.",
        "tags": ["exspec"],
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "panels": list(_panels()),
        "refresh": "10s",
        "schemaVersion": 39,
        "templating": {"list": _variables()},
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "version": 1,
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Rows from top to bottom, their panels from left to right."""
    y = number = 0
    for row in ROWS:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {
            "type": "row",
            "id": number,
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        y += 1
        x = line_height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, line_height = 0, y + line_height, 0
            number += 1
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            yield _panel(panel, number, place)
            x += panel.width
            line_height = max(line_height, panel.height)
        y += line_height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    lines = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    custom = lines | panel.custom if panel.kind == "timeseries" else {}
    return {
        "type": panel.kind,
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": query.is_instant,
                "range": not query.is_instant,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": custom} | panel.defaults,
            "overrides": [],
        },
        "options": _OPTIONS[panel.kind],
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"colorMode": "none", "graphMode": "area", "reduceOptions": _LAST},
    "bargauge": {"displayMode": "basic", "orientation": "vertical", "reduceOptions": _LAST},
}


def _variables() -> list[dict[str, Any]]:
    models = "label_values(exspec_requests_total, model_name)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "model_name",
            "label": "Model",
            "type": "query",
            "datasource": DATASOURCE,
            "definition": models,
            "query": {"query": models, "refId": "models"},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def main(argv: Sequence[str]) -> int:
    """Write or check the file; 1 if it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    arguments = parser.parse_args(argv)
    text = json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"
    if not arguments.check:
        DASHBOARD.write_text(text)
        return 0
    if DASHBOARD.exists() and DASHBOARD.read_text() == text:
        return 0
    sys.stderr.write(f"{DASHBOARD} is stale; run {Path(__file__).name}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
