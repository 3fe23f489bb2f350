"""Giving workers their next batch: builds the orders and notes the batch.

No event is handled here, no home changes here, and no round begins here.
"""

from __future__ import annotations

from coordinator.scheduler.budgets import Budgets
from coordinator.scheduler.commands import Command, Draft, DraftOrder, Verify
from coordinator.scheduler.costs import Costs
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.orders import (
    VerifyPlan,
    draft_order,
    feed_orders,
    in_prefill,
    plan_verify,
)
from coordinator.scheduler.rows import Batch, Group, Phase, Row, Worker
from coordinator.scheduler.state import State
from exspec.core.ids import BatchId


class Dispatcher:
    """Owns the numbering of batches; keeps the batches in flight at a worker within the limit."""

    def __init__(
        self, state: State, costs: Costs, limits: SchedulerLimits, first_batch_id: int
    ) -> None:
        self._state = state
        self._costs = costs
        self._limits = limits
        self._budgets = Budgets(costs, limits)
        self._next_batch_id = first_batch_id

    def dispatch(self) -> list[Command]:
        """Orders for every worker that has room for them: drafts, then verifies."""
        commands: list[Command] = [
            self._draft(worker)
            for worker in self._state.drafts.values()
            if worker.wanting and self._has_room(worker)
        ]
        for worker in self._state.drafts.values():
            if worker.hungry and self._has_room(worker):
                commands.extend(self._feed(worker))
        for target in self._state.targets.values():
            for group in tuple(target.groups):
                if not self._has_room(target):
                    break
                if not group.num_awaited:
                    commands.append(self._verify(group))
        return commands

    def _draft(self, worker: Worker) -> Draft:
        """All that want a draft from this worker, of whatever target."""
        rows = tuple(worker.wanting.values())
        orders = tuple([draft_order(row) for row in rows])
        patience = self._costs.patience(worker, orders)
        for row in rows:
            self._state.move(row, Phase.DRAFTING)
        batch = self._begin_draft(worker, rows, orders, patience)
        return Draft(worker.worker_id, batch.batch_id, orders, patience)

    def _feed(self, worker: Worker) -> tuple[Draft, ...]:
        """What no round waits for, in pieces that hold drafts up for little time."""
        feed = feed_orders(worker, self._budgets.feed(worker))
        if not feed:
            return ()
        orders = tuple([order for _, order in feed])
        patience = self._costs.patience(worker, orders)
        batch = self._begin_draft(worker, tuple([row for row, _ in feed]), orders, patience)
        return (Draft(worker.worker_id, batch.batch_id, orders, patience),)

    def _begin_draft(
        self,
        worker: Worker,
        rows: tuple[Row, ...],
        orders: tuple[DraftOrder, ...],
        patience: float,
    ) -> Batch:
        is_overlapped = any(target.batches for target in self._state.targets.values())
        batch = Batch(self._new_batch_id(), worker, rows, orders, None, is_overlapped, patience)
        self._state.begin_batch(batch)
        return batch

    def _verify(self, group: Group) -> Verify:
        target = group.target
        plan = self._plan(target, tuple(group.rows.values()))
        self._state.end_group(group)
        for row in plan.left_out:
            self._state.move(row, Phase.READY)
        for row in plan.rows:
            self._state.move(row, Phase.VERIFYING)
        self._align(plan)
        is_overlapped = any(worker.batches for worker in self._state.drafts.values())
        batch = Batch(self._new_batch_id(), target, plan.rows, plan.orders, group, is_overlapped)
        self._state.begin_batch(batch)
        return Verify(target.worker_id, batch.batch_id, plan.orders, plan.alignment)

    def _plan(self, target: Worker, rows: tuple[Row, ...]) -> VerifyPlan:
        num_deciding = sum(1 for row in rows if not in_prefill(row))
        if not num_deciding:
            return plan_verify(rows, self._limits.max_prefill_tokens)
        return plan_verify(rows, self._budgets.prefill(target, num_deciding))

    def _align(self, plan: VerifyPlan) -> None:
        if plan.alignment is not None:
            for row, left_pad in zip(plan.decoding_rows, plan.alignment.left_pads, strict=True):
                self._state.align(row, left_pad)

    def _has_room(self, worker: Worker) -> bool:
        return len(worker.batches) < self._limits.max_batches_in_flight

    def _new_batch_id(self) -> BatchId:
        batch_id = BatchId(self._next_batch_id)
        self._next_batch_id += 1
        return batch_id
