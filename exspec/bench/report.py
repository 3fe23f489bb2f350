"""Benchmark results as table cells and as plain values. No printing, no measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from exspec.bench.memory import MAX_GROWTH, ProcessMemory
from exspec.bench.rounds import Expectation, RoundsSample

ROUNDS_COLUMNS = (
    "layout",
    "B",
    "rounds",
    "rows/round",
    "acceptance\nlength",
    "ms/round",
    "draft",
    "verify",
    "align",
    "worker\noverhead",
    "gRPC +\nscheduling",
    "moved\nrows",
    "tokens/s",
)


def rounds_row(sample: RoundsSample) -> tuple[str, ...]:
    """Cells of one layout at one batch size."""
    shares, totals = sample.shares, sample.totals
    return (
        sample.layout,
        str(sample.batch_size),
        str(totals.num_rounds),
        f"{sample.rows_per_round:.2f}",
        f"{sample.acceptance_length:.2f}",
        f"{sample.round_milliseconds:.1f}",
        f"{shares.draft:.1%}",
        f"{shares.verify:.1%}",
        f"{shares.align:.2%}",
        f"{shares.worker_overhead:.1%}",
        f"{shares.rest:.1%}",
        str(totals.num_moved_rows),
        f"{sample.num_tokens / sample.seconds:.1f}",
    )


def rounds_dict(
    samples: Sequence[RoundsSample], expectations: Sequence[Expectation]
) -> dict[str, object]:
    """For JSON."""
    return {
        "samples": [
            {
                **asdict(sample),
                "rows_per_round": sample.rows_per_round,
                "acceptance_length": sample.acceptance_length,
                "round_milliseconds": sample.round_milliseconds,
                "tokens_per_second": sample.num_tokens / sample.seconds,
                "shares": asdict(sample.shares),
            }
            for sample in samples
        ],
        "expectations": [{**asdict(one), "is_met": one.is_met} for one in expectations],
    }


def expectation_line(expectation: Expectation) -> str:
    """Whether it was met, in a line."""
    word = "met   " if expectation.is_met else "MISSED"
    return f"{word}  {expectation.text}: measured {expectation.measured:.2%}"


def memory_row(process: ProcessMemory) -> tuple[str, ...]:
    """Cells of one process: MiB at every look, growth, whether it is steady."""
    looks = (f"{value / 2**20:.1f}" for value in process.resident_bytes)
    verdict = "yes" if process.is_steady else f"NO (over {MAX_GROWTH:.0%})"
    return (process.name, *looks, f"{process.growth:+.2%}", verdict)


def memory_dict(
    num_requests: Sequence[int], processes: Sequence[ProcessMemory]
) -> dict[str, object]:
    """For JSON."""
    return {
        "num_requests": list(num_requests),
        "processes": [
            {**asdict(one), "growth": one.growth, "is_steady": one.is_steady} for one in processes
        ],
    }
