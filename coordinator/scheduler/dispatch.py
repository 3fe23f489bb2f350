"""Giving idle workers their next batch: asks the policy, builds the orders, notes the batch.

No event is handled here and no home changes here.
"""

from __future__ import annotations

from coordinator.scheduler.commands import Command, Draft, Verify
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.orders import VerifyPlan, draft_order, plan_verify
from coordinator.scheduler.policy import Policy
from coordinator.scheduler.rows import Batch, Phase, Worker
from coordinator.scheduler.speculation import SpeculationRule
from coordinator.scheduler.state import State
from exspec.core.ids import BatchId, Role


class Dispatcher:
    """Owns the numbering of batches. A worker has at most one batch in flight."""

    def __init__(
        self,
        state: State,
        policy: Policy,
        limits: SchedulerLimits,
        speculation: SpeculationRule,
        first_batch_id: int,
    ) -> None:
        self._state = state
        self._policy = policy
        self._limits = limits
        self._speculation = speculation
        self._next_batch_id = first_batch_id

    def dispatch(self) -> list[Command]:
        """Orders for every idle worker that has something to do: drafts, then verifies."""
        idle = [worker for worker in self._state.workers.values() if worker.batch is None]
        commands: list[Command] = []
        for worker in idle:
            if worker.role is Role.DRAFT:
                commands.extend(self._draft(worker))
        for worker in idle:
            if worker.role is Role.TARGET:
                commands.extend(self._verify(worker))
        return commands

    def _draft(self, worker: Worker) -> tuple[Draft, ...]:
        rows = self._policy.next_draft(worker, self._limits)
        if not rows:
            return ()
        orders = tuple(draft_order(row, worker, self._speculation) for row in rows)
        batch = Batch(self._new_batch_id(), worker, rows, orders)
        for row in rows:
            self._state.move(row, Phase.DRAFTING)
        self._state.begin_batch(batch)
        return (Draft(worker.worker_id, batch.batch_id, orders),)

    def _verify(self, target: Worker) -> tuple[Verify, ...]:
        chosen = self._policy.next_verify(target, self._limits)
        if not chosen:
            return ()
        plan = plan_verify(chosen, self._speculation, self._limits.max_prefill_tokens)
        batch = Batch(self._new_batch_id(), target, plan.rows, plan.orders)
        for row in plan.rows:
            self._state.move(row, Phase.VERIFYING)
        self._align(plan)
        self._state.begin_batch(batch)
        return (Verify(target.worker_id, batch.batch_id, plan.orders, plan.alignment),)

    def _align(self, plan: VerifyPlan) -> None:
        if plan.alignment is not None:
            for row, left_pad in zip(plan.decoding_rows, plan.alignment.left_pads, strict=True):
                self._state.align(row, left_pad)

    def _new_batch_id(self) -> BatchId:
        batch_id = BatchId(self._next_batch_id)
        self._next_batch_id += 1
        return batch_id
