"""What a simulated run is made of. Values, checked; seconds everywhere. `codec` reads them as JSON.

The texts for lengths, acceptance and arrivals are explained in `workload`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from coordinator.scheduler.limits import SchedulerLimits
from coordinator.simulation.costs import Costs
from coordinator.simulation.presets import CPU_PAIR
from coordinator.simulation.workload import Workload
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import Role, WorkerId

KV_LAYOUTS = ("slots", "padded")


class ChangeKind(Enum):
    """What may happen to a worker while a run goes on."""

    JOIN = "join"
    """It joins, empty."""
    LEAVE = "leave"
    """It takes no new rows, and goes when its last row is gone."""
    DIE = "die"
    """It is gone at once, and what it holds and does with it."""
    SPEED = "speed"
    """Passes that begin from now on take `factor` times as long."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to a worker. Its name, "target-2" or "draft-0", says its role."""

    at_seconds: float
    kind: ChangeKind
    worker: str
    factor: float = 1.0

    def __post_init__(self) -> None:
        role_of(self.worker)
        if self.at_seconds < 0 or self.factor <= 0:
            raise InvalidRequestError(f"impossible change of a worker: {self}", field="change")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workers at the start, "target-0", "draft-0" and so on, and what happens to them.

    Slots that are None are enough for every row that could come.
    """

    num_targets: int = 1
    num_drafts: int = 1
    target_slots: int | None = None
    draft_slots: int | None = None
    kv_layout: str = "slots"
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if self.num_targets < 0 or self.num_drafts < 0:
            raise InvalidRequestError("numbers of workers are 0 or more", field="targets")
        if self.kv_layout not in KV_LAYOUTS:
            expected = " or ".join(KV_LAYOUTS)
            raise InvalidRequestError(
                f"unknown layout {self.kv_layout!r}, expected {expected}", field="kv_layout"
            )


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The coordinator's settings of the same names, and their defaults."""

    policy: str = "eqspec"
    batch_size: int = 8
    window_size: int | None = None
    max_wait_rounds: int | None = None
    max_batches_in_flight: int = 2
    num_speculative_tokens: str = "auto"
    max_prefill_tokens: int = 512
    max_mixed_prefill_tokens: int | None = None

    def limits(self) -> SchedulerLimits:
        """As the scheduler takes them.

        Raises:
            InvalidRequestError: a bound makes no sense.
        """
        try:
            return SchedulerLimits(
                batch_size=self.batch_size,
                window_size=self.window_size,
                max_wait_rounds=self.max_wait_rounds,
                max_batches_in_flight=self.max_batches_in_flight,
                max_prefill_tokens=self.max_prefill_tokens,
                max_mixed_prefill_tokens=self.max_mixed_prefill_tokens,
            )
        except ValueError as error:
            raise InvalidRequestError(str(error), field="batch_size") from error


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """One run. The same plan gives the same run."""

    costs: Costs = CPU_PAIR
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    cluster: Cluster = field(default_factory=Cluster)
    workload: Workload = field(default_factory=Workload)
    seed: int = 0


def role_of(name: str) -> Role:
    """The role that a worker's name begins with.

    Raises:
        InvalidRequestError: it begins with none.
    """
    for role in Role:
        if name.startswith(f"{role.value}-"):
            return role
    raise InvalidRequestError(
        f'a worker is called "target-N" or "draft-N", not {name!r}', field="change"
    )


def first_workers(cluster: Cluster) -> tuple[WorkerId, ...]:
    """Names of the workers that are there from the start."""
    numbers = ((Role.TARGET, cluster.num_targets), (Role.DRAFT, cluster.num_drafts))
    return tuple(
        WorkerId(f"{role.value}-{index}") for role, count in numbers for index in range(count)
    )
