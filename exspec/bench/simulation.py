"""Simulated runs as the library sees them: what is asked of the simulator and what it says. Values.

The simulator is a program of its own (`python -m coordinator.simulation`), since the library may
not import the coordinator; `simulation_process` starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exspec.bench.rounds import Expectation

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. `costs`: the name of a preset, or coefficients as the simulator takes them.

    The texts for K, lengths, acceptance and arrivals, and the changes of workers, are handed on as
    they are; the simulator checks them. `wire_milliseconds`: one direction; None: as in `costs`.
    """

    costs: str | Document = "cpu-pair"
    wire_milliseconds: float | None = None
    policy: str = "eqspec"
    batch_size: int = 8
    window_size: int | None = None
    max_wait_rounds: int | None = None
    max_batches_in_flight: int = 2
    num_speculative_tokens: str = "auto"
    num_targets: int = 1
    num_drafts: int = 1
    kv_layout: str = "slots"
    changes: tuple[Document, ...] = ()
    num_requests: int = 100
    prompt_tokens: str = "64"
    output_tokens: str = "128"
    acceptance: str = "0.7"
    arrivals: str = "all"
    seed: int = 0

    def document(self) -> dict[str, object]:
        """As the simulator takes it."""
        return {
            "costs": self._costs(),
            "scheduler": {
                "policy": self.policy,
                "batch_size": self.batch_size,
                "window_size": self.window_size,
                "max_wait_rounds": self.max_wait_rounds,
                "max_batches_in_flight": self.max_batches_in_flight,
                "num_speculative_tokens": self.num_speculative_tokens,
            },
            "cluster": {
                "num_targets": self.num_targets,
                "num_drafts": self.num_drafts,
                "kv_layout": self.kv_layout,
                "changes": [dict(change) for change in self.changes],
            },
            "workload": {
                "num_requests": self.num_requests,
                "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens,
                "acceptance": self.acceptance,
                "arrivals": self.arrivals,
            },
            "seed": self.seed,
        }

    def _costs(self) -> dict[str, object]:
        named = {"preset": self.costs} if isinstance(self.costs, str) else self.costs
        if self.wire_milliseconds is None:
            return dict(named)
        return {**named, "wire": {"seconds": self.wire_milliseconds / 1000}}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: what was asked, and the simulator's own record of the plan and its figures."""

    asked: RunPlan
    plan: Document
    figures: Document

    def figure(self, part: str, name: str) -> float:
        """A number, such as ("requests", "tokens_per_second")."""
        return float(self.figures[part][name])

    def percentile(self, what: str, name: str) -> float:
        """Of "latency" or "first_token": "p50", "p90", "p99" or "mean", in seconds."""
        return float(self.figures["requests"][what][name])

    @property
    def alignment_share(self) -> float:
        """Of the work of all workers."""
        aligning = self.figure("workers", "alignment_seconds")
        work = self.figure("workers", "target_seconds") + self.figure("workers", "draft_seconds")
        return aligning / work if work else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run."""
        return self.figure("requests", "tokens_per_second")

    @property
    def steady_tokens_per_second(self) -> float:
        """Without the beginning and the end of the run."""
        return self.figure("requests", "steady_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    is_reference: bool = False
    """A bound, or a published figure: dashed, in the colour of the line before it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is shown of a set of runs."""

    tables: tuple[Table, ...]
    expectations: tuple[Expectation, ...] = ()
    charts: tuple[Chart, ...] = ()


Reader = Callable[[Sequence[Sample]], Findings]


@dataclass(frozen=True, slots=True)
class Study:
    """Runs that belong together; `read` takes their samples, in the order of the plans."""

    plans: tuple[RunPlan, ...]
    read: Reader
