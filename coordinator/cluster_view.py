"""The state of the cluster as one value, put together from the parts that own it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import exspec
from coordinator import metrics, metrics_vllm
from coordinator.metrics import ClusterFigures, PoolFigures
from coordinator.pools import Pools
from coordinator.registry import WorkerRegistry
from coordinator.scheduler.rules import speculation_rule
from coordinator.settings import CoordinatorSettings
from exspec.core.cluster import ClusterStatus, PoolStatus, Totals
from exspec.core.metrics import Metric, Samples
from exspec.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Reads the parts; owns nothing."""

    pools: Pools
    registry: WorkerRegistry
    settings: CoordinatorSettings
    clock: Clock
    started: float

    def status(self) -> ClusterStatus:
        """The state of the cluster now."""
        pools = tuple(pool.status() for pool in self.pools)
        return ClusterStatus(
            version=exspec.__version__,
            is_ready=self.pools.has_target,
            model=self.pools.names,
            policy=self.settings.policy,
            workers=self.registry.statuses(),
            num_waiting=sum(pool.num_waiting for pool in pools),
            num_running=sum(pool.num_running for pool in pools),
            max_waiting=self.settings.max_waiting,
            speculation=speculation_rule(self.settings.num_speculative_tokens).text,
            window_size=self.settings.scheduler_limits.window,
            predicted_speedup=_mean(pools, [pool.predicted_speedup for pool in pools]),
            measured_speedup=_mean(pools, [pool.measured_speedup for pool in pools]),
            uptime_seconds=self.clock() - self.started,
            totals=Totals.sum_of(pool.totals for pool in pools),
            pools=pools,
        )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that `samples` may have."""
        return (*metrics.METRICS, *metrics_vllm.METRICS) if self._as_vllm else metrics.METRICS

    def samples(self) -> Samples:
        """All that metrics show of this moment."""
        figures = ClusterFigures(self.status(), self.measured_pools())
        own = metrics.samples(figures)
        return (*own, *metrics_vllm.samples(figures)) if self._as_vllm else own

    def measured_pools(self) -> tuple[PoolFigures, ...]:
        """The served models and what was measured of them."""
        return tuple(
            PoolFigures(pool.status(), pool.accounting.measures.value) for pool in self.pools
        )

    @property
    def _as_vllm(self) -> bool:
        return self.settings.metrics_compat == "vllm"


def _mean(pools: Sequence[PoolStatus], speedups: Sequence[float]) -> float:
    """Of those that are known, by the tokens their pools generated; 0 if none is."""
    known = [
        (speedup, pool.totals.num_generated_tokens)
        for pool, speedup in zip(pools, speedups, strict=True)
        if speedup > 0
    ]
    weight = sum(num_tokens for _, num_tokens in known)
    if not weight:
        return max((speedup for speedup, _ in known), default=0.0)
    return sum(speedup * num_tokens for speedup, num_tokens in known) / weight
