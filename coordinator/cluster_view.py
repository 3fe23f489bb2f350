"""The state of the cluster as one value, put together from the parts that own it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from coordinator import metrics, metrics_vllm
from coordinator.accounting import Accounting
from coordinator.driver import Driver
from coordinator.metrics import ClusterFigures, PoolFigures
from coordinator.pool import WorkerPool
from coordinator.settings import CoordinatorSettings
from exspec.core.cluster import ClusterStatus
from exspec.core.metrics import Metric, Samples
from exspec.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Reads the parts; owns nothing."""

    driver: Driver
    pool: WorkerPool
    accounting: Accounting
    settings: CoordinatorSettings
    clock: Clock
    started: float

    def status(self) -> ClusterStatus:
        """The state of the cluster now."""
        scheduler = self.driver.scheduler
        model = self.pool.model
        return ClusterStatus(
            version=version("exspec"),
            is_ready=self.pool.has_target,
            model="" if model is None else model.facts.name,
            policy=self.settings.policy,
            workers=self.pool.statuses(),
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            max_waiting=self.settings.max_waiting,
            speculation=scheduler.rule.text,
            window_size=scheduler.limits.window,
            predicted_speedup=scheduler.rule.speedup.predicted,
            measured_speedup=scheduler.rule.speedup.measured,
            uptime_seconds=self.clock() - self.started,
            totals=self.accounting.totals,
        )

    def pools(self) -> tuple[PoolFigures, ...]:
        """The served models and what was measured of them; none before a target has joined."""
        return self._pools(self.status())

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that `samples` may have."""
        return (*metrics.METRICS, *metrics_vllm.METRICS) if self._as_vllm else metrics.METRICS

    def samples(self) -> Samples:
        """All that metrics show of this moment."""
        status = self.status()
        figures = ClusterFigures(status, self._pools(status))
        own = metrics.samples(figures)
        return (*own, *metrics_vllm.samples(figures)) if self._as_vllm else own

    @property
    def _as_vllm(self) -> bool:
        return self.settings.metrics_compat == "vllm"

    def _pools(self, status: ClusterStatus) -> tuple[PoolFigures, ...]:
        if not status.model:
            return ()
        return (
            PoolFigures(
                status.model,
                status.num_waiting,
                status.num_running,
                status.predicted_speedup,
                status.measured_speedup,
                status.totals,
                self.accounting.measures.value,
            ),
        )
