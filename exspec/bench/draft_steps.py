"""What drafting a token costs a running cluster, against a plain step of its target, one request.

Long generations less short ones on the same prompt: what the prompt itself costs is in both. Of
repeats the fastest counts, since what else a machine does only adds; plain and drafted ones take
turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from exspec.bench.load import ignore_progress
from exspec.client import Client
from exspec.core.cluster import Totals

NUM_PROMPTS = 2
NUM_REPEATS = 3
LONG_TOKENS = 33
SHORT_PLAIN_TOKENS = 1
SHORT_DRAFTED_TOKENS = 3
"""The draft worker has read the prompt by then."""

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of workers' passes.

    `plain_seconds` of the target's pass for one token; `draft_seconds` of drafting, per proposed
    token. None: nothing of the kind was done.
    """

    plain_seconds: float | None = None
    draft_seconds: float | None = None

    @property
    def share(self) -> float | None:
        """A draft token against a plain step."""
        if not self.plain_seconds or self.draft_seconds is None:
            return None
        return self.draft_seconds / self.plain_seconds


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds, and what they were spent on: passes, or draft tokens."""

    seconds: float
    number: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the two things that are timed, and which part of a cluster's sums it is."""

    num_speculative_tokens: int
    short_tokens: int
    spent_of: Callable[[Totals], Spent]


def measure_steps(
    address: str,
    prompts: Sequence[TokenIds],
    num_speculative_tokens: int,
    on_done: Callable[[], None] = ignore_progress,
) -> StepCost:
    """Continue the first prompts again and again, nothing else being in flight.

    Raises:
        ExspecError: a request failed.
    """
    plain = _Kind(0, SHORT_PLAIN_TOKENS, lambda sums: Spent(sums.verify_seconds, sums.num_rounds))
    drafted = _Kind(
        num_speculative_tokens,
        SHORT_DRAFTED_TOKENS,
        lambda sums: Spent(sums.draft_seconds, sums.num_draft_tokens),
    )
    runs: dict[_Kind, dict[tuple[TokenIds, int], list[Spent]]] = {plain: {}, drafted: {}}
    with Client(address) as client:
        for _ in range(NUM_REPEATS):
            for kind, prompt in product(runs, prompts[:NUM_PROMPTS]):
                for length in (kind.short_tokens, LONG_TOKENS):
                    spent = _continue(client, prompt, kind, length)
                    runs[kind].setdefault((prompt, length), []).append(spent)
                    on_done()
    return StepCost(*(_per_unit(by_length) for by_length in runs.values()))


def _per_unit(repeats_of: Mapping[tuple[TokenIds, int], Sequence[Spent]]) -> float | None:
    """Seconds per unit of the long runs less the short ones; None without a unit."""
    seconds, number = 0.0, 0
    for (_, length), repeats in repeats_of.items():
        fastest = min(repeats, key=lambda one: one.seconds)
        sign = 1 if length == LONG_TOKENS else -1
        seconds += sign * fastest.seconds
        number += sign * fastest.number
    return max(0.0, seconds) / number if number > 0 else None


def _continue(client: Client, prompt: TokenIds, kind: _Kind, max_tokens: int) -> Spent:
    before = client.cluster_status().totals
    client.generate(
        prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        num_speculative_tokens=kind.num_speculative_tokens,
    )
    return kind.spent_of(client.cluster_status().totals.since(before))
