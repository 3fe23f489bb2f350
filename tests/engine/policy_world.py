"""Everything but the wire: the coordinator's own driver, ledger and scheduler over real workers
with tiny models, in one thread. What happens next is drawn from a seed; time is drawn too.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from coordinator.accounting import Accounting
from coordinator.driver import Driver
from coordinator.ledger import Ledger, SequenceSpec
from coordinator.output import Output
from coordinator.outside import Timing
from coordinator.scheduler.events import SequenceArrived
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.replay import Recorder, replay_lines
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler
from coordinator.text import TextStream
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.generation import Completed, Delta
from exspec.core.ids import Role, SequenceId, WorkerId
from tests.engine.policy_workers import DrawnClock, Member, Setting

MAX_SETTLE_STEPS = 20_000


@dataclass
class Request:
    """What was asked, and what came of it."""

    prompt: tuple[int, ...]
    max_tokens: int
    stops: tuple[int, ...] = ()
    num_speculative_tokens: int | None = None
    rules: ChoiceRules | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: object = None
    is_cancelled: bool = False

    def note(self, event: object) -> None:
        """The ledger's sink."""
        assert self.end is None, f"{event} after {self.end}"
        if isinstance(event, Delta):
            self.tokens += event.token_ids
            self.logprobs += event.logprobs
            self.prompt_logprobs += event.prompt_logprobs
        else:
            self.end = event

    @property
    def is_completed(self) -> bool:
        """It came to its end without an error."""
        return isinstance(self.end, Completed)

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return self.end is None and not self.is_cancelled


class World:
    """A driver and its workers. It is the driver's `Senders` and owns its patience."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.random = Random(seed)
        self.setting = setting
        self.clock = DrawnClock(Random(seed + 1))
        self.trace = io.StringIO()
        self.members: dict[WorkerId, Member] = {}
        self.requests: dict[SequenceId, Request] = {}
        self.patience: list[Callable[[], None]] = []
        """What the driver does when drafts are late; called when the seed says so."""
        scheduler = Scheduler(
            POLICIES[setting.policy](),
            setting.limits,
            speculation=speculation_rule(setting.rule),
        )
        self.accounting = Accounting(self.clock)
        self.driver = Driver(
            scheduler,
            Ledger(self.clock),
            self.accounting,
            self,
            Timing(self.clock, lambda _seconds, call: self.patience.append(call)),
            Recorder(scheduler, self.trace),
        )
        for role, number in ((Role.TARGET, setting.num_targets), (Role.DRAFT, setting.num_drafts)):
            for index in range(number):
                self.join(Member(f"{role.value}-{index}", role, setting, self.clock))

    # The driver's senders

    def send(self, worker_id, batch) -> None:
        self.members[worker_id].take(batch)

    def release(self, worker_id, sequence_ids) -> None:
        self.members[worker_id].release(sequence_ids)

    # What may happen

    def join(self, member: Member) -> None:
        self.members[member.worker_id] = member
        self.driver.join(member.joining)

    def ask(self, request: Request) -> None:
        name = SequenceId(f"s{len(self.requests)}")
        self.requests[name] = request
        length = len(request.prompt)
        rules = request.rules
        spec = SequenceSpec(
            name,
            request.prompt,
            length + request.max_tokens,
            frozenset(request.stops),
            (),
            rules=rules,
            min_tokens=0 if rules is None else rules.min_tokens,
        )
        self.driver.ledger.open(spec, Output(spec, TextStream(None)), request.note, self.clock())
        self.driver.arrive(
            SequenceArrived(name, length, spec.max_length, request.num_speculative_tokens)
        )

    def cancel(self, name: SequenceId) -> None:
        request = self.requests[name]
        if request.is_open:
            request.is_cancelled = True
            self.driver.cancel(name)

    def deliver(self, member: Member) -> None:
        self.driver.take_reply(member.worker_id, member.outbox.popleft())

    def run_out_of_patience(self) -> None:
        """With the youngest draft batch, most often one that is under way."""
        self.patience.pop()()

    def lose(self, member: Member) -> None:
        """The connection breaks, and comes back."""
        del self.members[member.worker_id]
        self.driver.lose(member.worker_id)
        member.reconnect(tuple(self.requests))
        self.join(member)

    def drain(self, member: Member) -> None:
        """It leaves, and another takes its place; what it has under way is finished first."""
        self.driver.drain(member.worker_id)
        while self.driver.scheduler.rows_on(member.worker_id):
            self._go_on(member)
        del self.members[member.worker_id]
        self.driver.lose(member.worker_id)
        name = f"{member.worker_id}+"
        self.join(Member(name, member.role, self.setting, self.clock))

    # Courses

    def step(self) -> bool:
        """A worker serves or answers something; False if there is nothing to."""
        moves = [
            (move, member)
            for member in self.members.values()
            for move, things in ((member.work, member.inbox), (self.deliver, member.outbox))
            if things
        ]
        if not moves:
            return False
        move, member = self.random.choice(moves)
        if move == self.deliver:
            self.deliver(member)
        else:
            member.work()
        return True

    def settle(self) -> None:
        """Nothing else happens; all that was asked comes to its end and nothing is left of it."""
        for _ in range(MAX_SETTLE_STEPS):
            if not self.step():
                break
        open_requests = [name for name, request in self.requests.items() if request.is_open]
        assert not open_requests, f"{open_requests} stand still"
        assert not self.driver.scheduler.state.rows
        assert not len(self.driver.ledger)
        assert not self.accounting._round_started
        for member in self.members.values():
            assert member.sessions.num_sequences == 0, member.worker_id
        for late in self.patience:
            late()  # whatever it was for is over
        replay_lines(self.trace.getvalue().splitlines())

    def _go_on(self, member: Member) -> None:
        if member.outbox:
            self.deliver(member)
        elif member.inbox:
            member.work()
        else:
            assert self.step(), f"{member.worker_id} cannot leave"
