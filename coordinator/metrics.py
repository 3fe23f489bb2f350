"""The coordinator's metrics: their names, and how they follow from the state of the cluster. Pure.

Names after ecosystem practice: `exspec_` and the unit; vLLM's are in `coordinator.metrics_vllm`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from coordinator.measures import Leaving, Measured
from exspec.core.acceptance import FinishReason
from exspec.core.cluster import ClusterStatus, PoolStatus, WorkerState
from exspec.core.ids import Role
from exspec.core.metrics import Metric, MetricKind, Sample, Samples

MODEL = ("model_name",)


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """One served model: what `exspec status` says of it, and what was measured."""

    status: PoolStatus
    measured: Measured


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """All that is shown of one moment."""

    status: ClusterStatus
    pools: tuple[PoolFigures, ...]


def counter(name: str, text: str, labels: tuple[str, ...] = MODEL) -> Metric:
    """A figure that only grows."""
    return Metric(f"{name}_total", MetricKind.COUNTER, text, labels)


def gauge(name: str, text: str, labels: tuple[str, ...] = MODEL) -> Metric:
    """A figure that goes both ways."""
    return Metric(name, MetricKind.GAUGE, text, labels)


def histogram(name: str, text: str, labels: tuple[str, ...] = MODEL) -> Metric:
    """A distribution of seconds."""
    return Metric(name, MetricKind.HISTOGRAM, text, labels)


BUILD = gauge("exspec_build_info", "1; the version is a label.", ("version", "policy"))
READY = gauge("exspec_ready", "1 while a target of any model takes requests, else 0.", ())
WORKERS = gauge(
    "exspec_workers",
    "Workers as the coordinator sees them; model_name is what they work for, empty while nothing.",
    (*MODEL, "role", "state"),
)
HEARTBEAT = gauge(
    "exspec_worker_heartbeat_age_seconds", "Since a worker's last sign of life.", ("role", "worker")
)
MAX_WAITING = gauge("exspec_requests_waiting_limit", "Most requests that may wait.", ())

WAITING = gauge("exspec_requests_waiting", "Requests that wait for a place.")
RUNNING = gauge("exspec_requests_running", "Requests that have a place on a target.")
REQUESTS = counter("exspec_requests", "Requests accepted.")
FAILURES = counter("exspec_request_failures", "Accepted requests that ended with an error.")
SUCCESSES = counter(
    "exspec_request_success", "Requests that ended well.", (*MODEL, "finished_reason")
)
PROMPT_TOKENS = counter("exspec_prompt_tokens", "Prompt tokens of accepted requests.")
GENERATION_TOKENS = counter("exspec_generation_tokens", "Tokens committed.")
FIRST_TOKEN = histogram(
    "exspec_time_to_first_token_seconds", "From a request's arrival to its first token."
)
OUTPUT_TOKEN = histogram(
    "exspec_time_per_output_token_seconds", "Per token after the first, mean of a request."
)
LATENCY = histogram("exspec_e2e_request_latency_seconds", "From a request's arrival to its end.")
QUEUE_TIME = histogram(
    "exspec_request_queue_time_seconds", "From a request's arrival to its first pass."
)

ROUNDS = counter("exspec_spec_rounds", "Verify batches that decided something.")
ROW_ROUNDS = counter("exspec_spec_row_rounds", "Rows of rounds that something was decided for.")
PLAIN_ROW_ROUNDS = counter("exspec_spec_plain_row_rounds", "Rows of rounds without draft tokens.")
DRAFT_TOKENS = counter("exspec_spec_draft_tokens", "Draft tokens verified.")
ACCEPTED_TOKENS = counter("exspec_spec_accepted_tokens", "Draft tokens accepted.")
LOOKED_UP_TOKENS = counter(
    "exspec_spec_looked_up_tokens",
    "Draft tokens verified that were looked up in the prompt or the answer so far; the others are "
    "a draft model's, also where what the text had before overruled its choice.",
)
ACCEPTED_LOOKED_UP_TOKENS = counter(
    "exspec_spec_accepted_looked_up_tokens", "Looked-up draft tokens accepted."
)
DRAFTED_AT = counter(
    "exspec_spec_draft_tokens_per_pos",
    "Draft tokens verified, by their place in the draft.",
    (*MODEL, "position"),
)
ACCEPTED_AT = counter(
    "exspec_spec_accepted_tokens_per_pos",
    "Draft tokens accepted, by their place in the draft.",
    (*MODEL, "position"),
)
WASTED_TOKENS = counter(
    "exspec_spec_wasted_tokens",
    "Draft tokens that came from draft workers and were not committed: rejected, cut off, late, or "
    "of lost requests; counted when a request ends.",
)
ROUND_SECONDS = counter(
    "exspec_round_seconds",
    "Where rounds' time went: draft, verify, align, worker (their overhead), network (gRPC, "
    "scheduling, waiting).",
    (*MODEL, "phase"),
)
MOVED_ROWS = counter("exspec_moved_rows", "Rows whose KV was moved to align a batch.")
DRAFT_FAILURES = counter("exspec_draft_failures", "Draft batches lost with their worker.")
OVERDUE_DRAFTS = counter("exspec_overdue_drafts", "Draft batches not waited for any longer.")
MIGRATIONS = counter(
    "exspec_session_migrations",
    "Sequences that a worker held when it was lost or began to drain.",
    (*MODEL, "reason"),
)
DEPARTURES = counter("exspec_worker_departures", "Connections to workers that ended.")
PREDICTED = gauge(
    "exspec_speedup_predicted",
    "Tokens per second over plain decoding, as the cost model predicts; 0 while not known.",
)
MEASURED = gauge(
    "exspec_speedup_measured",
    "Tokens per second over plain decoding, as measured; 0 while not known.",
)

METRICS = (
    *(BUILD, READY, WORKERS, HEARTBEAT, MAX_WAITING, WAITING, RUNNING, REQUESTS, FAILURES),
    *(SUCCESSES, PROMPT_TOKENS, GENERATION_TOKENS, FIRST_TOKEN, OUTPUT_TOKEN, LATENCY, QUEUE_TIME),
    *(ROUNDS, ROW_ROUNDS, PLAIN_ROW_ROUNDS, DRAFT_TOKENS, ACCEPTED_TOKENS),
    *(LOOKED_UP_TOKENS, ACCEPTED_LOOKED_UP_TOKENS, DRAFTED_AT, ACCEPTED_AT),
    *(
        WASTED_TOKENS,
        ROUND_SECONDS,
        MOVED_ROWS,
        DRAFT_FAILURES,
        OVERDUE_DRAFTS,
        MIGRATIONS,
        DEPARTURES,
    ),
    *(PREDICTED, MEASURED),
)
"""Everything the coordinator shows, in this order."""

_PRESENT = (WorkerState.JOINING, WorkerState.READY, WorkerState.DRAINING)
_GOOD_ENDINGS = (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH)


def samples(figures: ClusterFigures) -> Samples:
    """Every series."""
    status = figures.status
    made = [
        Sample(BUILD, (status.version, status.policy), 1),
        Sample(READY, (), int(status.is_ready)),
        Sample(MAX_WAITING, (), status.max_waiting),
        *_workers(status),
    ]
    for pool in figures.pools:
        made += _requests(pool)
        made += _speculation(pool)
        made += _times(pool)
    return tuple(made)


def _workers(status: ClusterStatus) -> Iterator[Sample]:
    counts = Counter((item.pool, item.worker.role, item.state) for item in status.workers)
    names = {pool.name for pool in status.pools} | {name for name, *_ in counts} | {""}
    for key in product(sorted(names), Role, WorkerState):
        name, role, state = key
        yield Sample(WORKERS, (name, role.value, state.value), counts[key])
    for item in status.workers:
        if item.state in _PRESENT:
            labels = (item.worker.role.value, item.worker.worker_id)
            yield Sample(HEARTBEAT, labels, item.heartbeat_age_seconds)


def _requests(pool: PoolFigures) -> Iterator[Sample]:
    status, measured = pool.status, pool.measured
    model, totals = (status.name,), status.totals
    yield Sample(WAITING, model, status.num_waiting)
    yield Sample(RUNNING, model, status.num_running)
    yield Sample(REQUESTS, model, totals.num_requests)
    yield Sample(FAILURES, model, totals.num_failed_requests)
    for reason in _GOOD_ENDINGS:
        yield Sample(SUCCESSES, (*model, reason.value), measured.finished.get(reason, 0))
    yield Sample(PROMPT_TOKENS, model, totals.num_prompt_tokens)
    yield Sample(GENERATION_TOKENS, model, totals.num_generated_tokens)
    yield Sample(FIRST_TOKEN, model, measured.time_to_first_token)
    yield Sample(OUTPUT_TOKEN, model, measured.time_per_output_token)
    yield Sample(LATENCY, model, measured.request_latency)
    yield Sample(QUEUE_TIME, model, measured.queue_time)


def _speculation(pool: PoolFigures) -> Iterator[Sample]:
    status, measured = pool.status, pool.measured
    model, totals = (status.name,), status.totals
    yield Sample(ROUNDS, model, totals.num_rounds)
    yield Sample(ROW_ROUNDS, model, totals.num_row_rounds)
    yield Sample(PLAIN_ROW_ROUNDS, model, totals.num_plain_row_rounds)
    yield Sample(DRAFT_TOKENS, model, totals.num_draft_tokens)
    yield Sample(ACCEPTED_TOKENS, model, totals.num_accepted_tokens)
    yield Sample(LOOKED_UP_TOKENS, model, totals.num_looked_up_tokens)
    yield Sample(ACCEPTED_LOOKED_UP_TOKENS, model, totals.num_accepted_looked_up_tokens)
    yield from per_position(DRAFTED_AT, model, measured.drafted_per_position)
    yield from per_position(ACCEPTED_AT, model, measured.accepted_per_position)
    yield Sample(WASTED_TOKENS, model, measured.num_wasted_tokens)
    yield Sample(DRAFT_FAILURES, model, totals.num_draft_failures)
    yield Sample(OVERDUE_DRAFTS, model, totals.num_overdue_drafts)
    for leaving in Leaving:
        yield Sample(MIGRATIONS, (*model, leaving.value), measured.migrations.get(leaving, 0))
    yield Sample(DEPARTURES, model, measured.num_departures)
    yield Sample(PREDICTED, model, status.predicted_speedup)
    yield Sample(MEASURED, model, status.measured_speedup)


def _times(pool: PoolFigures) -> Iterator[Sample]:
    model, totals = pool.status.name, pool.status.totals
    phases = {
        "draft": totals.draft_seconds,
        "verify": totals.verify_seconds,
        "align": totals.align_seconds,
        "worker": totals.worker_overhead_seconds,
        "network": pool.measured.waiting_seconds,
    }
    for phase, seconds in phases.items():
        yield Sample(ROUND_SECONDS, (model, phase), seconds)
    yield Sample(MOVED_ROWS, (model,), totals.num_moved_rows)


def per_position(
    metric: Metric, labels: tuple[str, ...], counts: tuple[int, ...]
) -> Iterator[Sample]:
    """One series per place in a draft, from 0."""
    for position, count in enumerate(counts):
        yield Sample(metric, (*labels, str(position)), count)
