"""A worker's metrics: its passes, counted as their replies go out, and what it holds.

Sequences are the worker thread's; the loop reads their number, which is never half written.
"""

from __future__ import annotations

from dataclasses import dataclass

from exspec.core.cluster import WorkerInfo
from exspec.core.ids import Role
from exspec.core.metrics import Histogram, Metric, MetricKind, Sample, Samples
from exspec.core.rounds import PassTimings

_PASS_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)
_WORKER = ("role", "model_name")


def _counter(name: str, text: str, labels: tuple[str, ...] = _WORKER) -> Metric:
    return Metric(name, MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, labels: tuple[str, ...] = _WORKER) -> Metric:
    return Metric(name, MetricKind.GAUGE, text, labels)


_READY = _gauge("exspec_worker_ready", "1 when the model is loaded, else 0.", ("role",))
_SEQUENCES = _gauge("exspec_worker_sequences", "Sequences held.")
_SLOTS = _gauge("exspec_worker_slots", "Sequences that can be held.")
_KV_BYTES = _gauge("exspec_worker_kv_bytes", "Bytes preallocated for KV.")
_PASSES = _counter("exspec_worker_passes_total", "Batches with rows that were served.")
_ROWS = _counter("exspec_worker_rows_total", "Rows of those batches.")
_TOKENS = _counter("exspec_worker_tokens_total", "Tokens fed.")
_MOVED_ROWS = _counter("exspec_worker_moved_rows_total", "Rows whose KV was moved.")
_PASS_SECONDS = Metric(
    "exspec_worker_pass_seconds", MetricKind.HISTOGRAM, "A batch with rows, served.", _WORKER
)
_PHASE_SECONDS = _counter(
    "exspec_worker_phase_seconds_total",
    "Where batches' time went: queue (before their turn), align, forward, overhead.",
    (*_WORKER, "phase"),
)

METRICS = (
    *(_READY, _SEQUENCES, _SLOTS, _KV_BYTES, _PASSES, _ROWS, _TOKENS, _MOVED_ROWS),
    *(_PASS_SECONDS, _PHASE_SECONDS),
)
"""Everything a worker shows, in this order."""


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker holds now."""

    worker: WorkerInfo
    num_sequences: int


class WorkerMeasures:
    """Owns the counts of one worker; changed on the event loop only."""

    def __init__(self) -> None:
        self._pass_seconds = Histogram(_PASS_BOUNDS)
        self._num_rows = 0
        self._num_tokens = 0
        self._num_moved_rows = 0
        self._phase_seconds = dict.fromkeys(("queue", "align", "forward", "overhead"), 0.0)

    def note_pass(self, timings: PassTimings) -> None:
        """A batch was served; one that only releases does not count."""
        if not timings.num_rows:
            return
        self._pass_seconds.observe(timings.total_seconds)
        self._num_rows += timings.num_rows
        self._num_tokens += timings.num_tokens
        self._num_moved_rows += timings.num_moved_rows
        known = timings.align_seconds + timings.forward_seconds
        self._phase_seconds["queue"] += max(0.0, timings.queue_seconds)
        self._phase_seconds["align"] += timings.align_seconds
        self._phase_seconds["forward"] += timings.forward_seconds
        self._phase_seconds["overhead"] += max(0.0, timings.total_seconds - known)

    def samples(self, role: Role, figures: WorkerFigures | None) -> Samples:
        """Every series; without figures, while the model loads, only that it is not ready."""
        ready = Sample(_READY, (role.value,), int(figures is not None))
        if figures is None:
            return (ready,)
        labels = (role.value, figures.worker.model.name)
        return (
            ready,
            Sample(_SEQUENCES, labels, figures.num_sequences),
            Sample(_SLOTS, labels, figures.worker.num_slots),
            Sample(_KV_BYTES, labels, figures.worker.kv_bytes),
            Sample(_PASSES, labels, self._pass_seconds.value.num_observations),
            Sample(_ROWS, labels, self._num_rows),
            Sample(_TOKENS, labels, self._num_tokens),
            Sample(_MOVED_ROWS, labels, self._num_moved_rows),
            Sample(_PASS_SECONDS, labels, self._pass_seconds.value),
            *(
                Sample(_PHASE_SECONDS, (*labels, phase), seconds)
                for phase, seconds in self._phase_seconds.items()
            ),
        )
