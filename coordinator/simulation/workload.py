"""The requests of a run: when they come, how long they are, how well their drafts are liked. Pure.

Lengths, acceptance and arrivals are given as short texts (see `distributions`) or, request by
request, as a trace. Every quantity has a random stream of its own, so that changing one of them
leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from coordinator.simulation.distributions import acceptances, arrivals, lengths
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import SequenceId


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """A request as somebody recorded it. `priority`: lower is sooner; `group` shares a turn."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the cluster.

    `prompt_tokens` and `output_tokens`: "64", "16..128" (uniform) or "16,20,31" (in turn).
    `acceptance`: the chance that a draft token is accepted if all before it were; "0.7", or
    "beta:7,3" drawn once per row. `arrivals`: "all" at once, "closed:N" in flight, or
    "poisson:RATE" per second. With a `trace`, its entries take the place of all but `acceptance`.
    """

    num_requests: int = 100
    prompt_tokens: str = "64"
    output_tokens: str = "128"
    acceptance: str = "0.7"
    arrivals: str = "all"
    trace: tuple[TraceEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request. `arrival_seconds` is None where it waits for one before it to end."""

    sequence_id: SequenceId
    arrival_seconds: float | None
    prompt_length: int
    output_length: int
    acceptance: float
    priority: int = 0
    group: str = ""

    @property
    def max_length(self) -> int:
        """Tokens of its log when it ends."""
        return self.prompt_length + self.output_length


def requests_of(workload: Workload, seed: int) -> tuple[SimulatedRequest, ...]:
    """All requests in the order of their arrival.

    Raises:
        InvalidRequestError: a text that means nothing, or nothing to do.
    """
    entries = workload.trace or _drawn_entries(workload, seed)
    num_requests = len(entries)
    chances = acceptances(workload.acceptance, num_requests, Random(f"{seed}/acceptance"))
    starts = _starts(workload, entries)
    return tuple(
        SimulatedRequest(
            sequence_id=SequenceId(f"r{index}"),
            arrival_seconds=start,
            prompt_length=entry.prompt_tokens,
            output_length=entry.output_tokens,
            acceptance=chance,
            priority=entry.priority,
            group=entry.group,
        )
        for index, (entry, start, chance) in enumerate(zip(entries, starts, chances, strict=True))
    )


def _drawn_entries(workload: Workload, seed: int) -> tuple[TraceEntry, ...]:
    count = workload.num_requests
    if count < 1:
        raise InvalidRequestError(f"there is nothing to do with {count} requests", field="requests")
    prompts = lengths("prompt_tokens", workload.prompt_tokens, count, Random(f"{seed}/prompt"))
    outputs = lengths("output_tokens", workload.output_tokens, count, Random(f"{seed}/output"))
    times = arrivals(workload.arrivals, count, Random(f"{seed}/arrivals")).times
    return tuple(map(TraceEntry, times, prompts, outputs))


def _starts(workload: Workload, entries: Sequence[TraceEntry]) -> list[float | None]:
    """A closed load holds all but the first N back; a trace comes when it says."""
    if workload.trace:
        return [entry.arrival_seconds for entry in entries]
    num_at_once = arrivals(workload.arrivals, 0, Random(0)).num_in_flight or len(entries)
    return [
        entry.arrival_seconds if index < num_at_once else None
        for index, entry in enumerate(entries)
    ]
