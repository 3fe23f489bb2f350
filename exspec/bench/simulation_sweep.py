"""A sweep over combinations of options: a run and a line of a table for each. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from exspec.bench.simulation import Chart, Findings, Line, RunPlan, Sample, Study, Table

DIMENSIONS = {
    "policy": "policy",
    "batch_size": "B",
    "num_speculative_tokens": "K",
    "num_targets": "targets",
    "num_drafts": "drafts",
    "wire_milliseconds": "wire\nms",
}
"""Fields of a plan that may differ between the runs of a sweep, and their columns."""

NUMERIC = ("num_targets", "num_drafts", "batch_size", "wire_milliseconds")
"""Those that may be the x axis of a chart, the best first."""


Cell = Callable[[Sample], str]
Figure = Callable[[Sample], float]
MAX_DRAFT_LENGTHS = 3


def sweep(base: RunPlan, values: Mapping[str, Sequence[Any]]) -> Study:
    """All combinations of these fields' values, the last field changing fastest."""
    names = tuple(values)
    plans = tuple(
        replace(base, **dict(zip(names, combination, strict=True)))
        for combination in product(*values.values())
    )
    varying = [name for name in DIMENSIONS if len(values.get(name, ())) > 1]
    return Study(plans, lambda samples: _findings(plans[0], varying, samples))


def _findings(first: RunPlan, varying: Sequence[str], samples: Sequence[Sample]) -> Findings:
    shown = varying or ["policy"]
    title = _title(first, shown)
    tables = (
        _table(f"service, {title}", shown, SERVICE, samples),
        _table(f"rounds, {title}", shown, ROUNDS, samples),
    )
    return Findings(tables, charts=_charts(varying, samples))


def _table(
    title: str, shown: Sequence[str], figures: Mapping[str, Cell], samples: Sequence[Sample]
) -> Table:
    columns = (*(DIMENSIONS[name] for name in shown), *figures)
    rows = tuple(
        (
            *(_show(getattr(sample.asked, name)) for name in shown),
            *(cell(sample) for cell in figures.values()),
        )
        for sample in samples
    )
    return Table(title, columns, rows)


def _title(first: RunPlan, shown: Sequence[str]) -> str:
    """What is the same in all runs."""
    costs = first.costs if isinstance(first.costs, str) else "coefficients of a file"
    fixed = (
        f"{label.replace(chr(10), ' ')} {_show(getattr(first, name))}"
        for name, label in DIMENSIONS.items()
        if name not in shown and getattr(first, name) is not None
    )
    return f"{costs}: {', '.join(fixed)}, seed {first.seed}"


def _charts(varying: Sequence[str], samples: Sequence[Sample]) -> tuple[Chart, ...]:
    """Throughput and tail latency along the first numeric field that varies."""
    axis = next((name for name in NUMERIC if name in varying), "batch_size")
    others = [name for name in varying if name != axis]
    label = DIMENSIONS[axis].replace("\n", " ")
    return (
        _chart("throughput", label, "tokens/s", _lines(axis, others, samples, _tokens_per_second)),
        _chart("latency, P99", label, "seconds", _lines(axis, others, samples, _p99)),
    )


def _chart(title: str, x_label: str, y_label: str, lines: tuple[Line, ...]) -> Chart:
    return Chart(title, x_label, y_label, lines)


def _lines(
    axis: str,
    others: Sequence[str],
    samples: Sequence[Sample],
    figure: Figure,
) -> tuple[Line, ...]:
    """One line per combination of the other fields."""
    points: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        name = ", ".join(
            f"{DIMENSIONS[other].replace(chr(10), ' ')} {_show(getattr(sample.asked, other))}"
            for other in others
        )
        x = float(getattr(sample.asked, axis) or 0)
        points.setdefault(name, []).append((x, figure(sample)))
    return tuple(line_of(name, line) for name, line in points.items())


def line_of(name: str, points: Sequence[tuple[float, float]]) -> Line:
    """A line through points, from left to right."""
    ordered = sorted(points)
    return Line(name, tuple(x for x, _ in ordered), tuple(y for _, y in ordered))


def _tokens_per_second(sample: Sample) -> float:
    return sample.tokens_per_second


def _p99(sample: Sample) -> float:
    return sample.percentile("latency", "p99")


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)


def _number(part: str, name: str, digits: int = 0) -> Cell:
    return lambda sample: f"{sample.figure(part, name):.{digits}f}"


def _share(part: str, name: str) -> Cell:
    return lambda sample: f"{sample.figure(part, name):.1%}"


def _percentile(what: str, name: str) -> Cell:
    return lambda sample: f"{sample.percentile(what, name):.2f}"


def _wasted(sample: Sample) -> str:
    drafted = sample.figure("rounds", "num_drafted")
    return f"{sample.figure('rounds', 'wasted_drafts') / drafted:.1%}" if drafted else "-"


def _draft_lengths(sample: Sample) -> str:
    """The commonest K and their shares of all rows in rounds."""
    counts: Mapping[str, int] = sample.figures["rounds"]["draft_lengths"]
    total = sum(counts.values())
    common = sorted(counts.items(), key=lambda item: -item[1])[:MAX_DRAFT_LENGTHS]
    return " ".join(f"{length}:{count / total:.0%}" for length, count in common)


def _scheduler_cost(sample: Sample) -> str:
    return f"{1e6 * sample.figures['scheduler']['round_seconds']['mean']:.0f}"


SERVICE: Mapping[str, Cell] = {
    "tokens/s": _number("requests", "tokens_per_second", 1),
    "steady\ntokens/s": _number("requests", "steady_tokens_per_second", 1),
    "requests/s": _number("requests", "requests_per_second", 2),
    "latency\nP50 s": _percentile("latency", "p50"),
    "\nP90": _percentile("latency", "p90"),
    "\nP99": _percentile("latency", "p99"),
    "1st token\nP50 s": _percentile("first_token", "p50"),
    "\nP90 ": _percentile("first_token", "p90"),
    "\nP99 ": _percentile("first_token", "p99"),
    "target\nbusy": _share("workers", "target_utilisation"),
    "draft\nbusy": _share("workers", "draft_utilisation"),
    "scheduler\nus/round": _scheduler_cost,
}
"""What clients and operators see of a run."""

ROUNDS: Mapping[str, Cell] = {
    "rounds": _number("rounds", "num_rounds"),
    "rows/\nround": _number("rounds", "rows_per_round", 2),
    "acceptance\nlength": _number("rounds", "acceptance_length", 2),
    "commonest K": _draft_lengths,
    "grouped": _share("rounds", "grouping_rate"),
    "full and\ngrouped": _share("rounds", "full_grouping_rate"),
    "align": lambda sample: f"{sample.alignment_share:.1%}",
    "waited\nrounds": _number("rounds", "max_waited_rounds"),
    "wasted\ndrafts": _wasted,
    "overdue\ndrafts": _number("rounds", "num_overdue"),
}
"""What its rounds looked like. Waited: at most, between two rounds of one row at its target."""
