"""Hypothesis drives a whole world against the shadow ledger: any order of replies, faults,
cancels, joins, leaves and drains; every event is followed by a full invariant check."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduler_plan import WorldPlan
from scheduler_random import RULES, world_of
from scheduler_world import World

from coordinator.scheduler.events import PassCost
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.scheduler import SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

FAULTS = st.sampled_from([status for status in EntryStatus if status is not EntryStatus.OK])
COSTS = st.none() | st.builds(
    PassCost, st.floats(1e-6, 0.5), st.floats(1e-6, 1.0), st.sampled_from([0.0, 0.01])
)


class SchedulerMachine(RuleBasedStateMachine):
    """Ends every example with `World.settle`: all finish, equal the truth, leave no KV."""

    world: World | None = None

    @initialize(
        policy=st.sampled_from(list(POLICIES)),
        rule=st.sampled_from(RULES),
        batch_size=st.integers(1, 4),
        wider=st.integers(0, 6),
        patience=st.integers(0, 2),
        max_batches_in_flight=st.integers(1, 3),
        max_prefill_tokens=st.integers(1, 20),
        max_mixed_prefill_tokens=st.none() | st.integers(1, 20),
    )
    def start(self, policy, rule, batch_size, wider, patience, **limits):
        window_size = batch_size + wider
        least_wait = -(-window_size // batch_size) - 1
        limits_ = SchedulerLimits(batch_size, window_size, least_wait + patience, **limits)
        self.world = world_of(WorldPlan(policy, limits_, rule))

    @rule(
        role=st.sampled_from(Role),
        number=st.integers(0, 2),
        num_slots=st.integers(1, 8),
        max_length=st.sampled_from([40, 12, 24]),
        kv_layout=st.sampled_from(["slots", "padded"]),
    )
    def join(self, role, number, num_slots, max_length, kv_layout):
        worker_id = f"{role.value}{number}"
        if worker_id not in self.world.workers:
            self.world.join(worker_id, role, num_slots, max_length, kv_layout)

    @rule(
        prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
        num_new=st.integers(1, 16),
        max_draft_tokens=st.sampled_from([None, None, 0, 1, 7]),
        priority=st.integers(-1, 1),
        group=st.sampled_from(["", "g", "h"]),
    )
    def arrive(self, prompt, num_new, max_draft_tokens, priority, group):
        name = f"s{len(self.world.generations)}"
        length = len(prompt) + num_new
        self.world.arrive(name, prompt, length, max_draft_tokens, priority, group)

    @precondition(lambda self: self.world.generations)
    @rule(data=st.data())
    def cancel(self, data):
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.generations))))

    @precondition(lambda self: self.world.busy)
    @rule(data=st.data(), cost=COSTS)
    def deliver(self, data, cost):
        self.world.deliver(data.draw(st.sampled_from(self.world.busy)), cost=cost)

    @precondition(lambda self: self.world.busy)
    @rule(data=st.data(), cost=COSTS)
    def deliver_with_faults(self, data, cost):
        worker_id = data.draw(st.sampled_from(self.world.busy))
        num_entries = len(self.world.flights_of(worker_id)[0].entries)
        faults = st.dictionaries(st.integers(0, num_entries - 1), FAULTS, max_size=num_entries)
        self.world.deliver(worker_id, data.draw(faults), cost)

    @precondition(lambda self: self.world.busy_drafts)
    @rule(data=st.data())
    def overdue(self, data):
        worker_id = data.draw(st.sampled_from(self.world.busy_drafts))
        self.world.overdue(worker_id, self._flight_of(data, worker_id))

    @precondition(lambda self: self.world.busy)
    @rule(data=st.data())
    def time_out(self, data):
        worker_id = data.draw(st.sampled_from(self.world.busy))
        index = self._flight_of(data, worker_id)
        num_entries = len(self.world.flights_of(worker_id)[index].entries)
        self.world.time_out(worker_id, index, data.draw(st.integers(0, num_entries)))

    @precondition(lambda self: self.world.workers)
    @rule(data=st.data())
    def lose(self, data):
        self.world.lose(data.draw(st.sampled_from(sorted(self.world.workers))))

    @precondition(lambda self: self.world.workers)
    @rule(data=st.data())
    def drain(self, data):
        self.world.drain(data.draw(st.sampled_from(sorted(self.world.workers))))

    @precondition(lambda self: self.world.refusing)
    @rule(data=st.data())
    def expire_refusal(self, data):
        self.world.expire_refusal(data.draw(st.sampled_from(self.world.refusing)))

    def teardown(self):
        if self.world is not None and not self.world.is_broken:
            self.world.settle()

    def _flight_of(self, data, worker_id: str) -> int:
        return data.draw(st.integers(0, len(self.world.flights_of(worker_id)) - 1))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
