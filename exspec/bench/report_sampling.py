"""Acceptance under sampling as table cells, lines and plain values. No printing, no measuring."""

from __future__ import annotations

from dataclasses import asdict

from exspec.bench.sampling import GREEDY, METHODS, SHARED, SamplingRuns, SamplingSample

SAMPLING_COLUMNS = (
    "target",
    "top-p",
    "drafts",
    "draft\ntokens",
    "accepted",
    "first of\na round",
    "accepted at position",
    "acceptance\nlength",
    "identical\nto plain",
)
_NAMES = {SHARED: "shared noise", GREEDY: "argmax"}


def sampling_rows(runs: SamplingRuns) -> list[tuple[str, ...]]:
    """Cells of every setting, both kinds of draft below each other."""
    found = [
        runs.sample_of(setting, method) for setting in runs.plan.settings for method in METHODS
    ]
    return [_row(runs, sample) for sample in found if sample is not None]


def _row(runs: SamplingRuns, sample: SamplingSample) -> tuple[str, ...]:
    setting, stats = sample.setting, sample.speculation
    return (
        f"temperature {setting.temperature:g}" if setting.temperature else "greedy",
        f"{setting.top_p:g}",
        _NAMES[sample.method],
        str(stats.num_draft_tokens),
        f"{stats.acceptance_rate:.1%}",
        f"{sample.first_rate:.1%}",
        " ".join(f"{100 * rate:.0f}" for rate in sample.rates_per_position) + " %",
        f"{stats.acceptance_length:.2f}",
        f"{sample.num_identical(runs.plain[setting])}/{len(sample.token_ids)}",
    )


def sampling_lines(runs: SamplingRuns) -> list[tuple[str, bool]]:
    """Whether what was expected is so, in a line, and as a fact."""
    lines = [(_exact_line(runs), runs.is_exact)]
    for setting in runs.plan.settings:
        shared, argmax = (runs.sample_of(setting, method) for method in METHODS)
        if setting.temperature and shared is not None and argmax is not None:
            ours, theirs = shared.first_rate, argmax.first_rate
            text = (
                f"temperature {setting.temperature:g}, top-p {setting.top_p:g}: shared noise is "
                f"accepted at least as often as argmax: {ours:.1%} against {theirs:.1%}"
            )
            lines.append((f"{_word(ours >= theirs)}  {text}", ours >= theirs))
    return lines


def _exact_line(runs: SamplingRuns) -> str:
    return f"{_word(runs.is_exact)}  every request has the tokens of plain decoding"


def _word(is_met: bool) -> str:  # noqa: FBT001 - what is said of a fact
    return "met   " if is_met else "MISSED"


def sampling_dict(runs: SamplingRuns) -> dict[str, object]:
    """For JSON."""
    return {
        "plan": asdict(runs.plan),
        "is_exact": runs.is_exact,
        "samples": [
            {
                **asdict(sample.setting),
                "drafts": sample.method,
                "speculation": asdict(sample.speculation),
                "acceptance_rate": sample.speculation.acceptance_rate,
                "acceptance_length": sample.speculation.acceptance_length,
                "first_rate": sample.first_rate,
                "rates_per_position": sample.rates_per_position,
                "num_identical": sample.num_identical(runs.plain[sample.setting]),
                "num_requests": len(sample.token_ids),
            }
            for sample in runs.samples
        ],
    }
