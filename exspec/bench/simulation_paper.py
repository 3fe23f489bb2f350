"""The scenario "paper": grouping, alignment and latency with the costs of arXiv 2510.22876.

Three questions, each with the paper's own numbers beside it where it prints some: how often rows
group by themselves (Fig. 5c), what realigning the others takes (Fig. 5b), and what waiting for a
group does to the slowest requests (its table of serving latency).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from exspec.bench.rounds import Expectation
from exspec.bench.simulation import Chart, Findings, Line, RunPlan, Sample, Study, Table

EQUAL, RANDOM = "16", "5..40"
"""Prompts of sixteen tokens, and sentences as they come."""
GROUPING_SIZES = (2, 4, 8, 16, 32)
ALIGNMENT_SIZES = (1, 2, 4, 8, 16, 32)
SERVING_SIZES = (2, 4, 8)
SERVING_POLICIES = ("eqspec-static", "eqspec", "exspec-paper", "exspec")
WINDOW = 50
SERVING_WINDOW = 32
SERVING_RATE_PER_ROW = 0.25
"""Requests per second for each row of a batch: three quarters of what EQSPEC can serve at B = 2,
nine tenths at B = 8."""
SERVING_REQUESTS = 3
"""Times as many requests as in the other questions, for the slowest of a hundred."""

PAPER_GROUPING = {
    EQUAL: {2: 0.959, 4: 0.893, 8: 0.841, 16: 0.707, 32: 0.442},
    RANDOM: {2: 0.236, 4: 0.175, 8: 0.048, 16: 0.013, 32: 0.0},
}
"""Fig. 5c of the paper, as labelled there."""

BASE = RunPlan(
    costs="paper",
    num_speculative_tokens="5",
    acceptance="0.55",
    kv_layout="padded",
    max_batches_in_flight=1,
)
"""Drafts and target of the paper share one device and take turns."""


def paper_study(num_requests: int = 100, seed: int = 0) -> Study:
    """The runs of all three questions."""
    base = replace(BASE, num_requests=num_requests, seed=seed)
    grouping = [
        replace(
            base,
            policy=policy,
            batch_size=size,
            window_size=WINDOW,
            prompt_tokens=prompts,
            output_tokens="50",
        )
        for policy, prompts, size in product(
            ("exspec-paper", "exspec"), (EQUAL, RANDOM), GROUPING_SIZES
        )
    ]
    alignment = [
        replace(base, batch_size=size, prompt_tokens="40..250", policy="eqspec")
        for size in ALIGNMENT_SIZES
    ]
    serving = [
        replace(
            base,
            policy=policy,
            batch_size=size,
            window_size=None if policy.startswith("eqspec") else SERVING_WINDOW,
            prompt_tokens="40..250",
            output_tokens="32..224",
            arrivals=f"poisson:{SERVING_RATE_PER_ROW * size:g}",
            num_requests=SERVING_REQUESTS * num_requests,
        )
        for size, policy in product(SERVING_SIZES, SERVING_POLICIES)
    ]
    ends = (len(grouping), len(grouping) + len(alignment))
    return Study((*grouping, *alignment, *serving), _reader(*ends))


def _reader(first_end: int, second_end: int) -> Callable[[Sequence[Sample]], Findings]:
    def findings(samples: Sequence[Sample]) -> Findings:
        grouping = samples[:first_end]
        alignment = samples[first_end:second_end]
        serving = samples[second_end:]
        return Findings(
            (_grouping_table(grouping), _alignment_table(alignment), _serving_table(serving)),
            (*_grouping_expectations(grouping), *_serving_expectations(serving)),
            (_grouping_chart(grouping), _alignment_chart(alignment), _serving_chart(serving)),
        )

    return findings


# Grouping


def _grouping_table(samples: Sequence[Sample]) -> Table:
    columns = ("policy", "prompts", "B", "grouped", "paper", "full and\ngrouped", "waited", "align")
    rows = tuple(
        (
            sample.asked.policy,
            _prompts_name(sample),
            str(sample.asked.batch_size),
            f"{_grouping_rate(sample):.1%}",
            f"{PAPER_GROUPING[sample.asked.prompt_tokens][sample.asked.batch_size]:.1%}",
            f"{sample.figure('rounds', 'full_grouping_rate'):.1%}",
            f"{sample.figure('rounds', 'max_waited_rounds'):.0f}",
            f"{sample.alignment_share:.1%}",
        )
        for sample in samples
    )
    return Table(f"grouping, W = {WINDOW}, 50 tokens each", columns, rows)


def _grouping_expectations(samples: Sequence[Sample]) -> list[Expectation]:
    """Equal prompts group more often than random ones, whatever the batch size."""
    rates = {_grouping_key(sample): _grouping_rate(sample) for sample in samples}
    return [
        Expectation(
            f"{policy}, B = {size}: random prompts group no more often than equal ones",
            rate - rates[policy, EQUAL, size],
            0.0,
        )
        for (policy, prompts, size), rate in rates.items()
        if prompts == RANDOM
    ]


def _grouping_key(sample: Sample) -> tuple[str, str, int]:
    return sample.asked.policy, sample.asked.prompt_tokens, sample.asked.batch_size


def _grouping_chart(samples: Sequence[Sample]) -> Chart:
    lines: list[Line] = []
    keys = dict.fromkeys(_grouping_key(sample)[:2] for sample in samples)
    for key in keys:
        chosen = [sample for sample in samples if _grouping_key(sample)[:2] == key]
        xs = tuple(float(one.asked.batch_size) for one in chosen)
        name = f"{key[0]}, {_prompts_name(chosen[0])}"
        lines.append(Line(name, xs, tuple(_grouping_rate(one) for one in chosen)))
        if key[0] == "exspec-paper":
            rates = tuple(PAPER_GROUPING[key[1]][one.asked.batch_size] for one in chosen)
            lines.append(Line("as published", xs, rates, is_reference=True))
    return Chart("batches that needed no realignment", "batch size", "share", tuple(lines))


def _grouping_rate(sample: Sample) -> float:
    return sample.figure("rounds", "grouping_rate")


def _prompts_name(sample: Sample) -> str:
    return "equal" if sample.asked.prompt_tokens == EQUAL else "random"


# Alignment


def _alignment_table(samples: Sequence[Sample]) -> Table:
    columns = ("B", "align", "rows/\nround", "tokens/s", "acc.\nlength")
    rows = tuple(
        (
            str(sample.asked.batch_size),
            f"{sample.alignment_share:.1%}",
            f"{sample.figure('rounds', 'rows_per_round'):.2f}",
            f"{sample.tokens_per_second:.1f}",
            f"{sample.figure('rounds', 'acceptance_length'):.2f}",
        )
        for sample in samples
    )
    return Table("alignment, eqspec, 128 tokens each", columns, rows)


def _alignment_chart(samples: Sequence[Sample]) -> Chart:
    xs = tuple(float(sample.asked.batch_size) for sample in samples)
    ys = tuple(sample.alignment_share for sample in samples)
    return Chart("alignment, eqspec", "batch size", "share of all work", (Line("", xs, ys),))


# Serving


def _serving_table(samples: Sequence[Sample]) -> Table:
    columns = ("B", "policy", "tokens/s", "P50 s", "P90 s", "P99 s", "first token\nP99 s", "waited")
    rows = tuple(
        (
            str(sample.asked.batch_size),
            sample.asked.policy,
            f"{sample.tokens_per_second:.1f}",
            *(f"{sample.percentile('latency', name):.2f}" for name in ("p50", "p90", "p99")),
            f"{sample.percentile('first_token', 'p99'):.2f}",
            f"{sample.figure('rounds', 'max_waited_rounds'):.0f}",
        )
        for sample in samples
    )
    title = f"latency, {SERVING_RATE_PER_ROW:g} x B requests/s, W = {SERVING_WINDOW} for exspec"
    return Table(title, columns, rows)


def _serving_expectations(samples: Sequence[Sample]) -> list[Expectation]:
    """Ageing bounds what grouping costs the slowest."""
    found: list[Expectation] = []
    by_key = {(one.asked.batch_size, one.asked.policy): one for one in samples}
    for size in dict.fromkeys(one.asked.batch_size for one in samples):
        ours, theirs = by_key[size, "exspec"], by_key[size, "exspec-paper"]
        excess = ours.percentile("latency", "p99") / theirs.percentile("latency", "p99") - 1
        found.append(
            Expectation(f"B = {size}: P99 of exspec above that of exspec-paper", excess, 0.0)
        )
    return found


def _serving_chart(samples: Sequence[Sample]) -> Chart:
    lines: list[Line] = []
    for policy in dict.fromkeys(sample.asked.policy for sample in samples):
        chosen = [sample for sample in samples if sample.asked.policy == policy]
        xs = tuple(float(one.asked.batch_size) for one in chosen)
        lines.append(Line(policy, xs, tuple(one.percentile("latency", "p99") for one in chosen)))
    return Chart("latency, P99", "batch size", "seconds", tuple(lines))
