"""The state of the cluster as one value, put together from the parts that own it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from coordinator.accounting import Accounting
from coordinator.driver import Driver
from coordinator.pool import WorkerPool
from coordinator.settings import CoordinatorSettings
from exspec.core.cluster import ClusterStatus
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
