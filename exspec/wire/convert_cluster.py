"""Messages about the cluster (registry, status), to our values and back. Nowhere else."""

from __future__ import annotations

import unicodedata
from dataclasses import fields

from exspec.core.cluster import (
    ClusterStatus,
    PoolStatus,
    Totals,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
)
from exspec.core.errors import ProtocolError
from exspec.core.ids import Role, WorkerId
from exspec.v1 import common_pb2, registry_pb2
from exspec.wire.convert_model import (
    facts_from_message,
    facts_to_message,
    role_from_message,
    role_to_message,
)

MAX_NAME_LENGTH = 512
"""Characters of anything a worker calls itself."""

_UNPRINTABLE = {"Cc", "Zl", "Zp"}
"""Categories of characters that end a line of a log or steer a terminal."""

_STATES = {
    WorkerState.JOINING: registry_pb2.WORKER_STATE_JOINING,
    WorkerState.READY: registry_pb2.WORKER_STATE_READY,
    WorkerState.DRAINING: registry_pb2.WORKER_STATE_DRAINING,
    WorkerState.LOST: registry_pb2.WORKER_STATE_LOST,
    WorkerState.REFUSED: registry_pb2.WORKER_STATE_REFUSED,
}
_STATES_BACK = {value: key for key, value in _STATES.items()}


def worker_to_message(worker: WorkerInfo) -> common_pb2.WorkerInfo:
    """A worker as it announces itself."""
    return common_pb2.WorkerInfo(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        role=role_to_message(worker.role),
        address=worker.address,
        num_slots=worker.num_slots,
        model=facts_to_message(worker.model),
        kv_layout=worker.kv_layout,
        kv_bytes=worker.kv_bytes,
        draft_for=worker.draft_for,
    )


def worker_from_message(message: common_pb2.WorkerInfo) -> WorkerInfo:
    """A worker as it announced itself; ProtocolError when something needed is missing."""
    for name in ("worker_id", "incarnation", "address"):
        if not getattr(message, name):
            raise ProtocolError(f"worker.{name} must not be empty")
    _check_names(
        "worker", message, ("worker_id", "incarnation", "address", "kv_layout", "draft_for")
    )
    _check_names(
        "worker.model",
        message.model,
        ("name", "architecture", "tokenizer_sha256", "dtype", "device", "fingerprint"),
    )
    if message.num_slots < 1:
        raise ProtocolError("worker.num_slots must be at least 1")
    if message.model.max_length < 1:
        raise ProtocolError("worker.model.max_length must be at least 1")
    role = role_from_message(message.role)
    if not message.model.name:
        raise ProtocolError("worker.model.name must not be empty")
    if role is Role.TARGET and message.model.vocab_size < 1:
        raise ProtocolError("worker.model.vocab_size must be at least 1")
    return WorkerInfo(
        worker_id=WorkerId(message.worker_id),
        incarnation=message.incarnation,
        role=role,
        address=message.address,
        num_slots=message.num_slots,
        model=facts_from_message(message.model),
        kv_layout=message.kv_layout,
        kv_bytes=message.kv_bytes,
        draft_for=message.draft_for,
    )


def _check_names(
    where: str, message: common_pb2.WorkerInfo | common_pb2.ModelInfo, names: tuple[str, ...]
) -> None:
    for name in names:
        value: str = getattr(message, name)
        if len(value) > MAX_NAME_LENGTH:
            raise ProtocolError(
                f"{where}.{name} may have at most {MAX_NAME_LENGTH} characters, got {len(value)}"
            )
        if any(unicodedata.category(character) in _UNPRINTABLE for character in value):
            raise ProtocolError(f"{where}.{name} must have no control characters, got {value!r}")


def status_to_message(status: ClusterStatus) -> registry_pb2.GetClusterStatusResponse:
    """The state of a cluster."""
    return registry_pb2.GetClusterStatusResponse(
        version=status.version,
        is_ready=status.is_ready,
        model=status.model,
        policy=status.policy,
        workers=[_worker_status_to_message(worker) for worker in status.workers],
        num_waiting=status.num_waiting,
        num_running=status.num_running,
        max_waiting=status.max_waiting,
        speculation=status.speculation,
        window_size=status.window_size,
        predicted_speedup=status.predicted_speedup,
        measured_speedup=status.measured_speedup,
        uptime_seconds=status.uptime_seconds,
        totals=_totals_to_message(status.totals),
        pools=[_pool_to_message(pool) for pool in status.pools],
    )


def status_from_message(message: registry_pb2.GetClusterStatusResponse) -> ClusterStatus:
    """The state of a cluster."""
    return ClusterStatus(
        version=message.version,
        is_ready=message.is_ready,
        model=message.model,
        policy=message.policy,
        workers=tuple(_worker_status_from_message(worker) for worker in message.workers),
        num_waiting=message.num_waiting,
        num_running=message.num_running,
        max_waiting=message.max_waiting,
        speculation=message.speculation,
        window_size=message.window_size,
        predicted_speedup=message.predicted_speedup,
        measured_speedup=message.measured_speedup,
        uptime_seconds=message.uptime_seconds,
        totals=_totals_from_message(message.totals),
        pools=tuple(_pool_from_message(pool) for pool in message.pools),
    )


def _worker_status_to_message(status: WorkerStatus) -> registry_pb2.WorkerStatus:
    return registry_pb2.WorkerStatus(
        worker=worker_to_message(status.worker),
        state=_STATES[status.state],
        reason=status.reason,
        num_sequences=status.num_sequences,
        heartbeat_age_seconds=status.heartbeat_age_seconds,
        pool=status.pool,
    )


def _worker_status_from_message(message: registry_pb2.WorkerStatus) -> WorkerStatus:
    state = _STATES_BACK.get(message.state)
    if state is None:
        raise ProtocolError(f"worker state {message.state} is not known")
    return WorkerStatus(
        worker_from_message(message.worker),
        state,
        message.reason,
        message.num_sequences,
        message.heartbeat_age_seconds,
        message.pool,
    )


def _pool_to_message(pool: PoolStatus) -> registry_pb2.PoolStatus:
    return registry_pb2.PoolStatus(
        name=pool.name,
        is_ready=pool.is_ready,
        num_targets=pool.num_targets,
        num_drafts=pool.num_drafts,
        num_waiting=pool.num_waiting,
        num_running=pool.num_running,
        predicted_speedup=pool.predicted_speedup,
        measured_speedup=pool.measured_speedup,
        totals=_totals_to_message(pool.totals),
    )


def _pool_from_message(message: registry_pb2.PoolStatus) -> PoolStatus:
    return PoolStatus(
        name=message.name,
        is_ready=message.is_ready,
        num_targets=message.num_targets,
        num_drafts=message.num_drafts,
        num_waiting=message.num_waiting,
        num_running=message.num_running,
        predicted_speedup=message.predicted_speedup,
        measured_speedup=message.measured_speedup,
        totals=_totals_from_message(message.totals),
    )


def _totals_to_message(totals: Totals) -> registry_pb2.Totals:
    return registry_pb2.Totals(**{one.name: getattr(totals, one.name) for one in fields(Totals)})


def _totals_from_message(message: registry_pb2.Totals) -> Totals:
    return Totals(**{one.name: getattr(message, one.name) for one in fields(Totals)})
