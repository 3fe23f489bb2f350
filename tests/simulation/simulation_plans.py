"""Short plans for tests: machines whose times are round numbers, for sums done by hand."""

from __future__ import annotations

from coordinator.simulation.costs import Costs, DraftCosts, VerifyCosts, WireCosts
from coordinator.simulation.plan import Cluster, SchedulerSettings, SimulationPlan
from coordinator.simulation.workload import Workload

VERIFY, DRAFT, WIRE = 0.1, 0.01, 0.001


def flat_costs(wire=WIRE, jitter=0.0) -> Costs:
    """Passes that cost the same whatever is in them."""
    return Costs(
        VerifyCosts(VERIFY), DraftCosts(DRAFT), wire=WireCosts(seconds=wire, jitter_seconds=jitter)
    )


def plan_of(costs=None, cluster=None, seed=0, workload=None, **settings) -> SimulationPlan:
    """`settings` are the scheduler's; K is 5 and B is 8 unless said otherwise."""
    settings = {"num_speculative_tokens": "5", **settings}
    return SimulationPlan(
        costs=costs or flat_costs(),
        scheduler=SchedulerSettings(**settings),
        cluster=cluster or Cluster(),
        workload=workload or Workload(num_requests=1),
        seed=seed,
    )
