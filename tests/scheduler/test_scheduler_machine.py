"""Hypothesis drives a whole world against the shadow ledger: any order of replies, faults,
cancels, joins, leaves and drains; every event is followed by a full invariant check."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduler_world import World

from coordinator.scheduler.eqspec import EqSpec
from coordinator.scheduler.scheduler import Scheduler, SchedulerLimits
from exspec.core.ids import Role
from exspec.core.rounds import EntryStatus

FAULTS = st.sampled_from([status for status in EntryStatus if status is not EntryStatus.OK])


class SchedulerMachine(RuleBasedStateMachine):
    """Ends every example with `World.settle`: all finish, equal the truth, leave no KV."""

    world: World | None = None

    @initialize(
        batch_size=st.integers(1, 4),
        num_speculative_tokens=st.integers(0, 5),
        max_prefill_tokens=st.integers(1, 20),
    )
    def start(self, **limits):
        settings_ = SchedulerLimits(**limits)
        self.world = World(Scheduler(EqSpec(), settings_), settings_)

    @rule(
        role=st.sampled_from(Role),
        number=st.integers(0, 2),
        num_slots=st.integers(1, 5),
        max_length=st.sampled_from([40, 12, 24]),
    )
    def join(self, role, number, num_slots, max_length):
        worker_id = f"{role.value}{number}"
        if worker_id not in self.world.workers:
            self.world.join(worker_id, role, num_slots, max_length)

    @rule(
        prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
        num_new=st.integers(1, 16),
        max_draft_tokens=st.sampled_from([None, None, 0, 1, 7]),
    )
    def arrive(self, prompt, num_new, max_draft_tokens):
        name = f"s{len(self.world.generations)}"
        self.world.arrive(name, prompt, len(prompt) + num_new, max_draft_tokens)

    @precondition(lambda self: self.world.generations)
    @rule(data=st.data())
    def cancel(self, data):
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.generations))))

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data())
    def deliver(self, data):
        self.world.deliver(data.draw(st.sampled_from(sorted(self.world.flights))))

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data())
    def deliver_with_faults(self, data):
        worker_id = data.draw(st.sampled_from(sorted(self.world.flights)))
        num_entries = len(self.world.flights[worker_id].entries)
        faults = st.dictionaries(st.integers(0, num_entries - 1), FAULTS, max_size=num_entries)
        self.world.deliver(worker_id, data.draw(faults))

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data())
    def time_out(self, data):
        worker_id = data.draw(st.sampled_from(sorted(self.world.flights)))
        num_entries = len(self.world.flights[worker_id].entries)
        self.world.time_out(worker_id, data.draw(st.integers(0, num_entries)))

    @precondition(lambda self: self.world.workers)
    @rule(data=st.data())
    def lose(self, data):
        self.world.lose(data.draw(st.sampled_from(sorted(self.world.workers))))

    @precondition(lambda self: self.world.workers)
    @rule(data=st.data())
    def drain(self, data):
        self.world.drain(data.draw(st.sampled_from(sorted(self.world.workers))))

    def teardown(self):
        if self.world is not None and not self.world.is_broken:
            self.world.settle()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
