"""The same figures under vLLM's names, for dashboards and gateways made for it. Pure.

Shown with `--metrics-compat vllm`. Labels as vLLM's: `engine` is always "0".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coordinator.metrics import (
    ClusterFigures,
    PoolFigures,
    counter,
    gauge,
    histogram,
    per_position,
)
from exspec.core.acceptance import FinishReason
from exspec.core.cluster import ClusterStatus, WorkerState
from exspec.core.ids import Role
from exspec.core.metrics import Sample, Samples

_LABELS = ("model_name", "engine")

_RUNNING = gauge("vllm:num_requests_running", "As exspec_requests_running.", _LABELS)
_WAITING = gauge("vllm:num_requests_waiting", "As exspec_requests_waiting.", _LABELS)
_KV_USAGE = gauge(
    "vllm:kv_cache_usage_perc", "Share of the ready targets' slots that is taken.", _LABELS
)
_SUCCESSES = counter(
    "vllm:request_success", "Requests that ended well.", (*_LABELS, "finished_reason")
)
_PROMPT_TOKENS = counter("vllm:prompt_tokens", "As exspec_prompt_tokens_total.", _LABELS)
_GENERATION_TOKENS = counter(
    "vllm:generation_tokens", "As exspec_generation_tokens_total.", _LABELS
)
_FIRST_TOKEN = histogram(
    "vllm:time_to_first_token_seconds", "As exspec_time_to_first_token_seconds.", _LABELS
)
_OUTPUT_TOKEN = histogram(
    "vllm:request_time_per_output_token_seconds",
    "As exspec_time_per_output_token_seconds.",
    _LABELS,
)
_LATENCY = histogram(
    "vllm:e2e_request_latency_seconds", "As exspec_e2e_request_latency_seconds.", _LABELS
)
_QUEUE_TIME = histogram(
    "vllm:request_queue_time_seconds", "As exspec_request_queue_time_seconds.", _LABELS
)
_DRAFTS = counter("vllm:spec_decode_num_drafts", "Rows of rounds with draft tokens.", _LABELS)
_DRAFT_TOKENS = counter(
    "vllm:spec_decode_num_draft_tokens", "As exspec_spec_draft_tokens_total.", _LABELS
)
_ACCEPTED_TOKENS = counter(
    "vllm:spec_decode_num_accepted_tokens", "As exspec_spec_accepted_tokens_total.", _LABELS
)
_ACCEPTED_AT = counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "As exspec_spec_accepted_tokens_per_pos_total.",
    (*_LABELS, "position"),
)

METRICS = (
    *(_RUNNING, _WAITING, _KV_USAGE, _SUCCESSES, _PROMPT_TOKENS, _GENERATION_TOKENS),
    *(_FIRST_TOKEN, _OUTPUT_TOKEN, _LATENCY, _QUEUE_TIME),
    *(_DRAFTS, _DRAFT_TOKENS, _ACCEPTED_TOKENS, _ACCEPTED_AT),
)
"""Everything shown under vLLM's names."""

_REASONS = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
}


def samples(figures: ClusterFigures) -> Samples:
    """Every series."""
    return tuple(
        sample
        for pool in figures.pools
        for sample in (*_requests(figures.status, pool), *_speculation(pool))
    )


def _requests(status: ClusterStatus, pool: PoolFigures) -> Iterator[Sample]:
    labels, totals, measured = (pool.status.name, "0"), pool.status.totals, pool.measured
    yield Sample(_RUNNING, labels, pool.status.num_running)
    yield Sample(_WAITING, labels, pool.status.num_waiting)
    yield Sample(_KV_USAGE, labels, _slot_usage(status, pool.status.name))
    finished = Counter[str]()
    for reason, number in measured.finished.items():
        finished[_REASONS.get(reason, "abort")] += number
    for name in ("stop", "length", "abort"):
        yield Sample(_SUCCESSES, (*labels, name), finished[name])
    yield Sample(_PROMPT_TOKENS, labels, totals.num_prompt_tokens)
    yield Sample(_GENERATION_TOKENS, labels, totals.num_generated_tokens)
    yield Sample(_FIRST_TOKEN, labels, measured.time_to_first_token)
    yield Sample(_OUTPUT_TOKEN, labels, measured.time_per_output_token)
    yield Sample(_LATENCY, labels, measured.request_latency)
    yield Sample(_QUEUE_TIME, labels, measured.queue_time)


def _speculation(pool: PoolFigures) -> Iterator[Sample]:
    labels, totals = (pool.status.name, "0"), pool.status.totals
    yield Sample(_DRAFTS, labels, totals.num_row_rounds - totals.num_plain_row_rounds)
    yield Sample(_DRAFT_TOKENS, labels, totals.num_draft_tokens)
    yield Sample(_ACCEPTED_TOKENS, labels, totals.num_accepted_tokens)
    yield from per_position(_ACCEPTED_AT, labels, pool.measured.accepted_per_position)


def _slot_usage(status: ClusterStatus, model_name: str) -> float:
    targets = [
        item
        for item in status.workers
        if item.worker.role is Role.TARGET
        and item.state is WorkerState.READY
        and item.pool == model_name
    ]
    num_slots = sum(item.worker.num_slots for item in targets)
    return sum(item.num_sequences for item in targets) / num_slots if num_slots else 0.0
