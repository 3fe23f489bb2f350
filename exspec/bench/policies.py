"""The scheduling policies side by side: which clusters are compared, and what was expected of them.

Plain decoding at batch size one is both the yardstick of speed and the judge of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exspec.bench.runs import Configuration, Runs, RunSample

PLAIN = "plain"
"""Not a policy of its own: eqspec without a draft worker and with K = 0."""
EQSPEC = "eqspec"
EXSPEC = "exspec"
AUTO = "auto"
PAPER_WINDOW_FACTOR = 4
MIN_PAPER_WINDOW = 32
"""The paper's windows hold 32 to 48 sequences."""

MIN_SCALING = 3.0
SCALING_BATCH_SIZE = 8
MIN_AUTO_RATIO = 0.97
MAX_LATENCY_RATIO = 1.3
P99 = 0.99

YARDSTICK = Configuration(PLAIN, 1, "0")


@dataclass(frozen=True, slots=True)
class RatioExpectation:
    """A ratio of two figures that was expected to stay at or above, or below, a bound."""

    text: str
    measured: float
    lowest: float = 0.0
    highest: float = float("inf")

    @property
    def is_met(self) -> bool:
        """Whether it did."""
        return self.lowest <= self.measured <= self.highest


def configurations_of(
    policies: Sequence[str],
    batch_sizes: Sequence[int],
    speculations: Mapping[str, Sequence[str]],
) -> tuple[Configuration, ...]:
    """Plain decoding at batch size one, at all others, then every policy at every size and K."""
    plain = [Configuration(PLAIN, size, "0") for size in batch_sizes]
    others = [
        Configuration(policy, size, speculation)
        for policy in policies
        for size in batch_sizes
        for speculation in speculations[policy]
    ]
    return tuple(dict.fromkeys((YARDSTICK, *plain, *others)))


def window_of(policy: str, batch_size: int, own_window: int | None) -> int | None:
    """Sequences in play; `own_window` counts where a window may differ from the batch.

    None: the coordinator's own default.
    """
    if policy == EXSPEC:
        return max(own_window, batch_size) if own_window else None
    if policy.startswith(EXSPEC):
        paper_window = max(PAPER_WINDOW_FACTOR * batch_size, MIN_PAPER_WINDOW)
        return max(own_window or paper_window, batch_size)
    return batch_size


def reference_tokens(runs: Runs) -> tuple[tuple[int, ...], ...] | None:
    """What plain decoding at batch size one gave; None if it failed."""
    samples = runs.samples.get(YARDSTICK)
    return samples[0].token_ids if samples else None


def speed(sample: RunSample) -> float:
    """The figure that ratios of speed are made of."""
    return sample.tokens_per_second


def p99_seconds(sample: RunSample) -> float:
    """The figure that ratios of latency are made of."""
    return sample.latency(P99)


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where one of the two was not measured."""
    return part / whole if part is not None and whole else None


def speed_ratio(runs: Runs, one: Configuration, other: Configuration) -> float | None:
    """Tokens per second of one against another; None where one of them was not measured."""
    return ratio(runs.figure(one, speed), runs.figure(other, speed))


def expectations(runs: Runs) -> list[RatioExpectation]:
    """What is expected of the policies, as far as both sides of a comparison were measured."""
    found: list[RatioExpectation] = []
    for configuration in runs.samples:
        found += _scaling(runs, configuration)
        found += _auto_is_best(runs, configuration)
        found += _latency(runs, configuration)
    return found


def _scaling(runs: Runs, one: Configuration) -> list[RatioExpectation]:
    if (one.policy, one.batch_size) != (EXSPEC, SCALING_BATCH_SIZE):
        return []
    measured = speed_ratio(runs, one, Configuration(EXSPEC, 1, one.speculation))
    if measured is None:
        return []
    text = f"{one.name}: at least {MIN_SCALING:g} x its own speed at B = 1"
    return [RatioExpectation(text, measured, lowest=MIN_SCALING)]


def _auto_is_best(runs: Runs, one: Configuration) -> list[RatioExpectation]:
    """Deciding how far to speculate costs little against having known the best fixed K."""
    if not one.speculation.startswith(AUTO):
        return []
    fixed = [
        other
        for other in runs.samples
        if other.batch_size == one.batch_size
        and other.policy in (one.policy, PLAIN)
        and not other.speculation.startswith(AUTO)
    ]
    if not fixed:
        return []
    best = max(fixed, key=lambda other: runs.figure(other, speed) or 0.0)
    measured = speed_ratio(runs, one, best)
    assert measured is not None, "both have samples"
    name = PLAIN if best.policy == PLAIN else f"K = {best.speculation}"
    text = f"{one.name}: at least {MIN_AUTO_RATIO:g} x the best of plain and fixed K ({name})"
    return [RatioExpectation(text, measured, lowest=MIN_AUTO_RATIO)]


def _latency(runs: Runs, one: Configuration) -> list[RatioExpectation]:
    if one.policy != EXSPEC:
        return []
    other = Configuration(EQSPEC, one.batch_size, one.speculation)
    measured = ratio(runs.figure(one, p99_seconds), runs.figure(other, p99_seconds))
    if measured is None:
        return []
    text = f"{one.name}: P99 latency at most {MAX_LATENCY_RATIO:g} x that of eqspec"
    return [RatioExpectation(text, measured, highest=MAX_LATENCY_RATIO)]
