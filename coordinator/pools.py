"""The pools: one per served model, each with a scheduler, a ledger and accounts of its own.

Nothing of one pool touches another. Who fits which is decided here; who is connected is the
registry's business, and what a scheduler does with its workers the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coordinator.accounting import Accounting
from coordinator.driver import Driver
from coordinator.members import ServedModel
from coordinator.scheduler.rows import Worker
from exspec.core.cluster import PoolStatus, WorkerInfo
from exspec.core.errors import InvalidRequestError, ModelNotFoundError
from exspec.core.ids import Role, SequenceId
from exspec.core.models import ModelFacts, misfit


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One served model and what serves it."""

    model: ServedModel
    driver: Driver
    accounting: Accounting

    @property
    def name(self) -> str:
        """The served name."""
        return self.model.facts.name

    @property
    def targets(self) -> list[Worker]:
        """Connected targets that take rows."""
        return [one for one in self.driver.scheduler.state.targets.values() if not one.is_draining]

    @property
    def drafts(self) -> list[Worker]:
        """Connected draft workers that take rows."""
        return [one for one in self.driver.scheduler.state.drafts.values() if not one.is_draining]

    @property
    def max_length(self) -> int:
        """The longest sequence a connected target can hold; 0 without one."""
        return max((one.max_length for one in self.targets), default=0)

    @property
    def drafts_per_target(self) -> float:
        """How well it is served with draft workers; infinite without a target."""
        num_targets = len(self.targets)
        return len(self.drafts) / num_targets if num_targets else float("inf")

    def stranded(self) -> list[SequenceId]:
        """Sequences that no connected target could hold, those that refuse all rows left out."""
        ledger = self.driver.ledger
        longest = max((one.max_length for one in self.targets if not one.is_refusing), default=0)
        return [i for i in ledger.sequence_ids if ledger.max_length(i) > longest]

    def misfit(self, worker: WorkerInfo) -> str | None:
        """Why a worker cannot work for this model, or None if it can."""
        served = self.model.facts
        if worker.role is Role.DRAFT:
            return misfit(worker.model, served)
        return None if worker.model.fingerprint == served.fingerprint else _differs(worker, served)

    def status(self) -> PoolStatus:
        """Its state now."""
        scheduler = self.driver.scheduler
        num_targets = len(self.targets)
        return PoolStatus(
            name=self.name,
            is_ready=num_targets > 0,
            num_targets=num_targets,
            num_drafts=len(self.drafts),
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            predicted_speedup=scheduler.rule.speedup.predicted,
            measured_speedup=scheduler.rule.speedup.measured,
            totals=self.accounting.totals,
        )


class Pools:
    """Owns the pools. One is made when the first target of a name has answered, and stays."""

    def __init__(self, make: Callable[[ServedModel], Pool]) -> None:
        self.make = make
        self._by_name: dict[str, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> str:
        """The served names, for people."""
        return ", ".join(self._by_name)

    @property
    def has_target(self) -> bool:
        """Whether requests for one model at least can be served now."""
        return any(pool.targets for pool in self)

    def find(self, name: str) -> Pool | None:
        """The pool of a served name."""
        return self._by_name.get(name)

    def define(self, model: ServedModel) -> Pool:
        """The pool of this model's name; made now if there is none."""
        pool = self._by_name.get(model.facts.name)
        if pool is None:
            pool = self._by_name[model.facts.name] = self.make(model)
        return pool

    def choose(self, name: str) -> Pool:
        """The pool a request means; an empty name means the only one. There is one at least.

        Raises:
            InvalidRequestError: none was named, and several are served.
            ModelNotFoundError: no such model is served.
        """
        if name:
            pool = self.find(name)
            if pool is None:
                raise ModelNotFoundError(f"model {name!r} is not served here; served: {self.names}")
            return pool
        if len(self) > 1:
            raise InvalidRequestError(
                f"model must be named where several are served: {self.names}", field="model"
            )
        return next(iter(self))

    # Workers

    def home_of(self, worker: WorkerInfo) -> Pool | None:
        """The pool a worker works for; None while there is none for it.

        A draft worker that names none goes where there are fewest per target.
        """
        if worker.role is Role.TARGET:
            return self.find(worker.model.name)
        if worker.draft_for:
            return self.find(worker.draft_for)
        fitting = [pool for pool in self if pool.misfit(worker) is None]
        return min(fitting, key=lambda pool: pool.drafts_per_target, default=None)

    def misfit(self, worker: WorkerInfo) -> str | None:
        """Why a worker fits none of the pools it may work for; None: it does, or there is none."""
        if worker.role is Role.DRAFT and not worker.draft_for:
            reasons = [pool.misfit(worker) for pool in self]
            if None in reasons:
                return None
            return "; ".join(filter(None, reasons)) or None
        pool = self.home_of(worker)
        return None if pool is None else pool.misfit(worker)


def _differs(worker: WorkerInfo, served: ModelFacts) -> str:
    return (
        f"target model {worker.model.name!r} ({worker.model.dtype}, fingerprint "
        f"{worker.model.fingerprint[:12]}) is not the served model {served.name!r} "
        f"({served.dtype}, fingerprint {served.fingerprint[:12]})"
    )
