"""The loop: the scheduler as the driver runs it, with modelled workers, under virtual time.

No figures are computed here (see the measures) and no decision is taken: those are the scheduler's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from coordinator.scheduler.commands import Command, Draft, Release, Verify
from coordinator.scheduler.events import (
    DraftCompleted,
    DraftOverdue,
    Event,
    PassCost,
    SequenceArrived,
    VerifyCompleted,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler
from coordinator.simulation.plan import (
    Change,
    ChangeKind,
    SchedulerSettings,
    SimulationPlan,
    first_workers,
    role_of,
)
from coordinator.simulation.request_measures import RequestMeasures
from coordinator.simulation.results import SimulationResult
from coordinator.simulation.round_measures import RoundMeasures
from coordinator.simulation.scheduler_measures import Clock, SchedulerMeasures
from coordinator.simulation.sequences import Sequences
from coordinator.simulation.timeline import Timeline
from coordinator.simulation.worker_measures import worker_figures
from coordinator.simulation.workers import Fleet
from coordinator.simulation.workload import SimulatedRequest, requests_of
from exspec.core.errors import InternalError, InvalidRequestError
from exspec.core.ids import BatchId, Role, WorkerId

Progress = Callable[[int, int], None]

MAX_IDLE_STEPS = 100_000
"""Steps without a token after which a run is given up: the scheduler goes round in circles."""


def no_clock() -> float:
    """For runs in which nobody asks what the scheduler costs."""
    return 0.0


def no_progress(_num_finished: int, _num_requests: int) -> None:
    """For callers that show none."""


def simulate(
    plan: SimulationPlan, clock: Clock = no_clock, on_progress: Progress = no_progress
) -> SimulationResult:
    """Run a plan until its last request has ended.

    Raises:
        InvalidRequestError: the plan makes no sense, or its requests cannot all end.
    """
    return Simulation(plan, clock).run(on_progress)


def build_scheduler(settings: SchedulerSettings) -> Scheduler:
    """The real one.

    Raises:
        InvalidRequestError: no such policy, or a setting makes no sense.
    """
    if settings.policy not in POLICIES:
        expected = ", ".join(sorted(POLICIES))
        raise InvalidRequestError(
            f"unknown policy {settings.policy!r}, expected one of {expected}", field="policies"
        )
    try:
        rule = speculation_rule(settings.num_speculative_tokens)
    except ValueError as error:
        raise InvalidRequestError(str(error), field="num_speculative_tokens") from error
    return Scheduler(POLICIES[settings.policy](), settings.limits(), speculation=rule)


class Simulation:
    """Owns one run."""

    def __init__(self, plan: SimulationPlan, clock: Clock) -> None:
        self._plan = plan
        self._scheduler = build_scheduler(plan.scheduler)
        self._all_requests = requests_of(plan.workload, plan.seed)
        self._held_back: deque[SimulatedRequest] = deque()
        self._timeline = Timeline()
        self._fleet = Fleet(plan.costs, plan.cluster.kv_layout, plan.seed)
        self._sequences = Sequences(plan.seed)
        self._in_flight: dict[BatchId, WorkerId] = {}
        self._requests = RequestMeasures()
        self._rounds = RoundMeasures(plan.scheduler.batch_size)
        self._cost = SchedulerMeasures(clock)
        self._num_idle_steps = 0

    def run(self, on_progress: Progress) -> SimulationResult:
        """Until the last request has ended; what workers still do then is not waited for."""
        for worker_id in first_workers(self._plan.cluster):
            self._join(worker_id)
        for change in self._plan.cluster.changes:
            self._timeline.at(change.at_seconds, partial(self._change, change))
        for request in self._all_requests:
            if request.arrival_seconds is None:
                self._held_back.append(request)
            else:
                self._timeline.at(request.arrival_seconds, partial(self._arrive, request))
        self._run_to_end(on_progress)
        return SimulationResult(
            self._requests.figures(),
            self._rounds.figures(),
            worker_figures(self._fleet.all_workers(), self._timeline.now),
            self._cost.figures(),
        )

    def _run_to_end(self, on_progress: Progress) -> None:
        num_requests, num_told = len(self._all_requests), 0
        while self._requests.num_finished < num_requests:
            if not self._timeline.step():
                raise InvalidRequestError(
                    f"{self._requests.num_finished} of {num_requests} requests ended, and nothing "
                    "is left to wait for: is there a target with room for each of them?",
                    field="targets",
                )
            self._num_idle_steps += 1
            if self._num_idle_steps > MAX_IDLE_STEPS:
                raise InternalError(f"no token came in {MAX_IDLE_STEPS} steps")
            if self._requests.num_finished != num_told:
                num_told = self._requests.num_finished
                on_progress(num_told, num_requests)

    # The driver's part

    def _tell(self, event: Event) -> None:
        num_rounds = self._rounds.num_rounds
        with self._cost.measured():
            commands = self._scheduler.handle(event)
        for command in commands:
            self._execute(command)
        self._cost.note_rounds(self._rounds.num_rounds - num_rounds)
        self._let_leavers_go()

    def _execute(self, command: Command) -> None:
        if isinstance(command, Release):
            return
        now = self._timeline.now
        self._in_flight[command.batch_id] = command.worker_id
        answer = self._fleet.send(command, now)
        if isinstance(command, Verify):
            self._rounds.note_verify(command)
            reply = partial(self._take_verify, command, answer.cost)
        else:
            reply = partial(self._take_draft, command, answer.cost)
            overdue = partial(self._run_out_of_patience, command)
            self._timeline.at(now + command.patience_seconds, overdue)
        self._timeline.at(answer.at_seconds, reply)

    def _take_draft(self, command: Draft, cost: PassCost) -> None:
        if self._in_flight.pop(command.batch_id, None) is None:
            return
        outcomes = tuple(self._sequences.drafted(order) for order in command.orders)
        self._rounds.note_drafted(outcomes)
        self._tell(DraftCompleted(command.worker_id, command.batch_id, outcomes, cost))

    def _run_out_of_patience(self, command: Draft) -> None:
        if command.batch_id in self._in_flight:
            self._rounds.note_overdue()
            self._tell(DraftOverdue(command.worker_id, command.batch_id))

    def _take_verify(self, command: Verify, cost: PassCost) -> None:
        if self._in_flight.pop(command.batch_id, None) is None:
            return
        now = self._timeline.now
        outcomes = tuple(self._sequences.verified(order) for order in command.orders)
        self._rounds.note_verified(outcomes)
        for outcome in outcomes:
            if outcome.num_committed:
                self._num_idle_steps = 0
                self._requests.note_tokens(outcome.sequence_id, outcome.num_committed, now)
            if outcome.is_finished:
                self._requests.note_end(outcome.sequence_id, now)
        self._tell(VerifyCompleted(command.worker_id, command.batch_id, outcomes, cost))
        for outcome in outcomes:
            if outcome.is_finished and self._held_back:
                self._arrive(self._held_back.popleft())

    # What happens from outside

    def _arrive(self, request: SimulatedRequest) -> None:
        self._sequences.open(request)
        self._requests.note_arrival(request.sequence_id, self._timeline.now)
        self._tell(
            SequenceArrived(
                request.sequence_id,
                request.prompt_length,
                request.max_length,
                priority=request.priority,
                group=request.group,
            )
        )

    def _change(self, change: Change) -> None:
        worker_id = WorkerId(change.worker)
        if change.kind is ChangeKind.JOIN:
            self._join(worker_id, change.factor)
            return
        if not self._fleet.is_member(worker_id):
            raise InvalidRequestError(f"{change.worker} is not there: {change}", field="change")
        match change.kind:
            case ChangeKind.SPEED:
                self._fleet.set_factor(worker_id, change.factor)
            case ChangeKind.DIE:
                self._remove(worker_id)
            case ChangeKind.LEAVE:
                self._fleet.set_leaving(worker_id)
                self._tell(WorkerDraining(worker_id))

    def _join(self, worker_id: WorkerId, factor: float = 1.0) -> None:
        role = role_of(worker_id)
        self._fleet.join(worker_id, role, self._timeline.now)
        self._fleet.set_factor(worker_id, factor)
        cluster = self._plan.cluster
        slots = cluster.target_slots if role is Role.TARGET else cluster.draft_slots
        self._tell(
            WorkerJoined(
                worker_id,
                role,
                num_slots=slots or len(self._all_requests),
                max_length=1 + max(request.max_length for request in self._all_requests),
                kv_layout=cluster.kv_layout,
            )
        )

    def _remove(self, worker_id: WorkerId) -> None:
        self._fleet.remove(worker_id, self._timeline.now)
        lost = [batch for batch, owner in self._in_flight.items() if owner == worker_id]
        for batch_id in lost:
            del self._in_flight[batch_id]
        self._tell(WorkerLost(worker_id))

    def _let_leavers_go(self) -> None:
        for worker_id in self._fleet.leaving():
            is_idle = worker_id not in self._in_flight.values()
            if is_idle and not self._scheduler.rows_on(worker_id):
                self._remove(worker_id)
