"""Runs of clusters as table cells and as plain values. No printing, no measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from exspec.bench.policies import (
    PLAIN,
    YARDSTICK,
    RatioExpectation,
    expectations,
    reference_tokens,
    speed_ratio,
)
from exspec.bench.runs import Configuration, FailedRun, Runs, RunSample
from exspec.bench.simulation import Chart, Line

POLICIES_COLUMNS = (
    "policy",
    "K",
    "B",
    "window",
    "tokens/s",
    "x plain\nB = 1",
    "x plain\nsame B",
    "grouped",
    "align",
    "rows/\nround",
    "accept.\nlength",
    "mean\nK",
    "P50/P90/P99\ns",
    "identical",
)
GROUPING_COLUMNS = (
    "policy",
    "prompts",
    "B",
    "window",
    "rounds",
    "rows/\nround",
    "grouped",
    "align",
    "moved rows/\nround",
    "tokens/s",
)
UNKNOWN = "-"
_PERCENTILES = (0.5, 0.9, 0.99)

FIGURES: dict[str, Callable[[RunSample], float]] = {
    "tokens_per_second": lambda sample: sample.tokens_per_second,
    "seconds": lambda sample: sample.seconds,
    "num_rounds": lambda sample: sample.totals.num_rounds,
    "rows_per_round": lambda sample: sample.totals.rows_per_round,
    "grouping_rate": lambda sample: sample.totals.grouping_rate,
    "align_share": lambda sample: sample.totals.align_share,
    "moved_rows_per_round": lambda sample: sample.totals.moved_rows_per_round,
    "acceptance_length": lambda sample: sample.totals.acceptance_length,
    "mean_draft_tokens": lambda sample: sample.totals.mean_draft_tokens,
    "num_overdue_drafts": lambda sample: sample.totals.num_overdue_drafts,
    "num_draft_failures": lambda sample: sample.totals.num_draft_failures,
    "p50_seconds": lambda sample: sample.latency(_PERCENTILES[0]),
    "p90_seconds": lambda sample: sample.latency(_PERCENTILES[1]),
    "p99_seconds": lambda sample: sample.latency(_PERCENTILES[2]),
    "window_size": lambda sample: sample.status.window_size,
    "predicted_speedup": lambda sample: sample.status.predicted_speedup,
    "measured_speedup": lambda sample: sample.status.measured_speedup,
}
"""What is told of a run; of repeated ones the median."""


def policies_rows(runs: Runs) -> list[tuple[str, ...]]:
    """Cells of every configuration that was measured."""
    reference = reference_tokens(runs)
    return [_policies_row(runs, one, reference) for one in runs.samples]


def _policies_row(
    runs: Runs, one: Configuration, reference: Sequence[tuple[int, ...]] | None
) -> tuple[str, ...]:
    figures = _medians(runs, one)
    same_size = Configuration(PLAIN, one.batch_size, YARDSTICK.speculation)
    return (
        one.policy,
        one.speculation,
        str(one.batch_size),
        f"{figures['window_size']:.0f}",
        f"{figures['tokens_per_second']:.1f}",
        _times(speed_ratio(runs, one, YARDSTICK)),
        _times(speed_ratio(runs, one, same_size)),
        f"{figures['grouping_rate']:.1%}",
        f"{figures['align_share']:.2%}",
        f"{figures['rows_per_round']:.2f}",
        f"{figures['acceptance_length']:.2f}",
        f"{figures['mean_draft_tokens']:.2f}",
        "/".join(f"{figures[name]:.2f}" for name in ("p50_seconds", "p90_seconds", "p99_seconds")),
        _identical(runs.samples[one], reference),
    )


def grouping_rows(runs: Runs) -> list[tuple[str, ...]]:
    """Cells of every configuration that was measured."""
    return [_grouping_row(runs, one) for one in runs.samples]


def _grouping_row(runs: Runs, one: Configuration) -> tuple[str, ...]:
    figures = _medians(runs, one)
    return (
        one.policy,
        one.prompt_set,
        str(one.batch_size),
        f"{figures['window_size']:.0f}",
        f"{figures['num_rounds']:.0f}",
        f"{figures['rows_per_round']:.2f}",
        f"{figures['grouping_rate']:.1%}",
        f"{figures['align_share']:.2%}",
        f"{figures['moved_rows_per_round']:.2f}",
        f"{figures['tokens_per_second']:.1f}",
    )


def policies_dict(plan: object, runs: Runs) -> dict[str, object]:
    """For JSON."""
    reference = reference_tokens(runs)
    return {
        **runs_dict(plan, runs),
        "identical": [
            {**asdict(one), "num_identical": _num_identical(samples, reference)}
            for one, samples in runs.samples.items()
        ],
        "expectations": [{**asdict(one), "is_met": one.is_met} for one in expectations(runs)],
    }


def runs_dict(plan: object, runs: Runs) -> dict[str, object]:
    """For JSON: medians, and the figures of every single run."""
    return {
        "plan": plan,
        "configurations": [
            {
                **asdict(one),
                "median": _medians(runs, one),
                "runs": [
                    {
                        **{name: figure(sample) for name, figure in FIGURES.items()},
                        "totals": asdict(sample.totals),
                    }
                    for sample in samples
                ],
            }
            for one, samples in runs.samples.items()
        ],
        "failures": [asdict(failure) for failure in runs.failures],
    }


def run_line(one: Configuration, outcome: RunSample | FailedRun) -> str:
    """What became of a run."""
    if isinstance(outcome, FailedRun):
        return f"FAILED  {one.name}: {outcome.reason}"
    return f"{one.name}: {outcome.tokens_per_second:.1f} tokens/s"


def expectation_lines(runs: Runs) -> list[tuple[str, bool]]:
    """Whether each was met, in a line, and as a fact."""
    return [(ratio_line(one), one.is_met) for one in expectations(runs)]


def ratio_line(expectation: RatioExpectation) -> str:
    """Whether it was met, in a line."""
    word = "met   " if expectation.is_met else "MISSED"
    return f"{word}  {expectation.text}: measured {expectation.measured:.2f}"


def _medians(runs: Runs, one: Configuration) -> dict[str, float]:
    medians = {name: runs.figure(one, figure) for name, figure in FIGURES.items()}
    return {name: median for name, median in medians.items() if median is not None}


def _identical(samples: Sequence[RunSample], reference: Sequence[tuple[int, ...]] | None) -> str:
    number = _num_identical(samples, reference)
    return UNKNOWN if number is None else f"{number}/{len(samples[0].token_ids)}"


def _num_identical(
    samples: Sequence[RunSample], reference: Sequence[tuple[int, ...]] | None
) -> int | None:
    """Of the repeat that is furthest from the reference; None without one."""
    if reference is None:
        return None
    return min(sample.num_identical(reference) for sample in samples)


def _times(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.2f}"


def policies_charts(runs: Runs) -> tuple[Chart, ...]:
    """Speed and latency over the batch size, a line per policy and K."""

    def name_of(one: Configuration) -> str:
        return f"{one.policy}, K = {one.speculation}"

    return (
        _chart(runs, "speed", ("tokens_per_second", "tokens/s"), name_of),
        _chart(runs, "P99 latency", ("p99_seconds", "s"), name_of),
    )


def grouping_charts(runs: Runs) -> tuple[Chart, ...]:
    """How often nothing had to move, and what moving took, a line per policy and prompt set."""

    def name_of(one: Configuration) -> str:
        return f"{one.policy}, {one.prompt_set} prompts"

    return (
        _chart(runs, "grouping rate", ("grouping_rate", "share of rounds"), name_of),
        _chart(runs, "alignment", ("align_share", "share of the rounds' time"), name_of),
    )


def _chart(
    runs: Runs, title: str, figure: tuple[str, str], name_of: Callable[[Configuration], str]
) -> Chart:
    """`figure` is its name and its unit."""
    points: dict[str, list[tuple[int, float]]] = {}
    for one in runs.samples:
        point = (one.batch_size, _medians(runs, one)[figure[0]])
        points.setdefault(name_of(one), []).append(point)
    lines = [
        Line(name, tuple(x for x, _ in sorted(line)), tuple(y for _, y in sorted(line)))
        for name, line in points.items()
    ]
    return Chart(title, "batch size B", figure[1], tuple(lines))
