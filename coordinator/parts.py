"""The coordinator's parts, put together once. Construction only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import grpc.aio

from coordinator.accounting import Accounting
from coordinator.cluster_view import ClusterView
from coordinator.driver import Driver
from coordinator.ledger import Ledger
from coordinator.members import PoolLimits, ServedModel
from coordinator.outside import Timing
from coordinator.pools import Pool, Pools
from coordinator.registry import WorkerRegistry
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.replay import Recorder
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler
from coordinator.service import GenerationService, ServiceLimits
from coordinator.servicer import AdminServicer, GenerationServicer, RegistryServicer
from coordinator.settings import CoordinatorSettings
from coordinator.traces import Traces
from exspec.core.models import GenerationDefaults
from exspec.runtime.clock import Clock
from exspec.v1 import generation_pb2_grpc, registry_pb2_grpc
from exspec.wire.tls import TlsConfig

GENERATION_SERVICE = "exspec.v1.GenerationService"
REGISTRY_SERVICE = "exspec.v1.RegistryService"
ADMIN_SERVICE = "exspec.v1.AdminService"
SERVICE_NAMES = (GENERATION_SERVICE, REGISTRY_SERVICE, ADMIN_SERVICE)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running coordinator consists of."""

    pools: Pools
    registry: WorkerRegistry
    service: GenerationService
    view: ClusterView
    limits: PoolLimits
    readiness_changed: asyncio.Event

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add all services, for a coordinator with one port."""
        self.add_generation_to(server)
        self.add_registry_to(server)
        self.add_admin_to(server)

    def add_generation_to(self, server: grpc.aio.Server) -> None:
        """Add what clients call."""
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            GenerationServicer(self.service, self.pools), server
        )

    def add_registry_to(self, server: grpc.aio.Server) -> None:
        """Add what workers call."""
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(
            RegistryServicer(self.registry, self.limits), server
        )

    def add_admin_to(self, server: grpc.aio.Server) -> None:
        """Add what operators call."""
        registry_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self.view, self.registry), server
        )


def build(
    settings: CoordinatorSettings,
    clock: Clock,
    traces: Traces | None,
    worker_tls: TlsConfig | None = None,
) -> Parts:
    """Put a coordinator together; must run inside the event loop that will run it.

    `worker_tls` is how workers are connected to; None is plain text.
    """
    limits = PoolLimits(
        settings.lease_seconds, settings.draft_timeout_seconds, settings.target_timeout_seconds
    )
    readiness_changed = asyncio.Event()

    def note_change() -> None:
        service.note_target_change()
        readiness_changed.set()

    pools = Pools(lambda model: _pool(model, settings, clock, registry, traces))
    registry = WorkerRegistry(pools, limits, clock, note_change, worker_tls)
    service = GenerationService(
        pools,
        registry,
        ServiceLimits(
            settings.max_waiting,
            settings.unavailable_seconds,
            settings.slow_reader_seconds,
            settings.max_client_requests,
        ),
        clock,
    )
    view = ClusterView(pools, registry, settings, clock, clock())
    return Parts(pools, registry, service, view, limits, readiness_changed)


def _pool(
    model: ServedModel,
    settings: CoordinatorSettings,
    clock: Clock,
    registry: WorkerRegistry,
    traces: Traces | None,
) -> Pool:
    """A pool for a model that was not served before."""
    if settings.generation_config == "none":
        model = replace(model, facts=replace(model.facts, generation=GenerationDefaults()))
    scheduler = Scheduler(
        POLICIES[settings.policy](),
        settings.scheduler_limits,
        speculation=speculation_rule(settings.num_speculative_tokens),
    )
    accounting = Accounting(clock)
    stream = None if traces is None else traces.open(model.facts.name)
    recorder = None if stream is None else Recorder(scheduler, stream)
    timing = Timing(clock, asyncio.get_running_loop().call_later)
    measures = accounting.measures
    ledger = Ledger(clock, measures.note_completed, measures.note_wasted)
    driver = Driver(scheduler, ledger, accounting, registry, timing, recorder)
    return Pool(model, driver, accounting)
