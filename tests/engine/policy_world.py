"""Everything but the wire: the coordinator's own driver, ledger and scheduler over real workers
with tiny models, in one thread. What happens next is drawn from a seed; time is drawn too.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from coordinator.accounting import Accounting
from coordinator.driver import Driver, Timing
from coordinator.ledger import Ledger, SequenceSpec
from coordinator.scheduler.events import SequenceArrived, WorkerJoined
from coordinator.scheduler.limits import SchedulerLimits
from coordinator.scheduler.policies import POLICIES
from coordinator.scheduler.replay import Recorder, replay_lines
from coordinator.scheduler.rules import speculation_rule
from coordinator.scheduler.scheduler import Scheduler
from coordinator.text import TextStream
from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from exspec.core.generation import Completed, Delta
from exspec.core.ids import BatchId, Role, SequenceId, WorkerId
from exspec.core.rounds import DraftBatch, EntryStatus, VerifyBatch
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner
from target_worker.verifier import Verifier
from tests.engine.conftest import loaded_family
from tests.engine.tiny import VOCAB_SIZE

CAPACITY = 96
MAX_SETTLE_STEPS = 20_000


class DrawnClock:
    """Moves on by a drawn time whenever it is read."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self._random.expovariate(1000)
        return self.now


class Fallible:
    """The target's own model as a draft: wrong now and then, and going on from its mistakes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.facts = runner.facts
        self.num_slots = runner.num_slots
        self.capacity = runner.capacity
        self.release = runner.release

    def forward(self, rows):
        output = self._runner.forward(rows)
        choices = tuple(
            tuple(_mistaken(row.end, choice) for choice in own)
            for row, own in zip(rows, output.choices, strict=True)
        )
        return replace(output, choices=choices)


def _mistaken(length: int, choice: int) -> int:
    return choice if crc32(bytes((length, choice))) % 4 else (choice + 1) % VOCAB_SIZE


@dataclass(frozen=True)
class Setting:
    """One way to serve."""

    policy: str
    rule: str
    layout: KvLayoutName
    limits: SchedulerLimits
    family: str = "llama-gqa"
    num_targets: int = 1
    num_drafts: int = 1
    num_ahead: int = 0


class Member:
    """A worker without its process: batches wait in `inbox`, answers in `outbox`, both in order."""

    def __init__(self, name: str, role: Role, setting: Setting, clock: DrawnClock) -> None:
        self.worker_id = WorkerId(name)
        self.role = role
        self.layout = setting.layout
        self.inbox: deque[tuple[VerifyBatch | DraftBatch, float]] = deque()
        self.outbox: deque = deque()
        self._clock = clock
        num_slots = setting.limits.window * (1 if role is Role.TARGET else setting.num_targets)
        runner = ModelRunner(
            loaded_family(setting.family),
            layout=setting.layout,
            num_slots=num_slots,
            capacity=CAPACITY,
        )
        self.num_slots = num_slots
        self.target = self.drafter = None
        if role is Role.TARGET:
            self.target = Verifier(runner, clock, orphan_seconds=1e9)
        else:
            proposer = ModelProposer(Fallible(runner))
            self.drafter = Drafter(proposer, clock, orphan_seconds=1e9, num_ahead=setting.num_ahead)

    @property
    def sessions(self) -> Verifier | Drafter:
        """Who holds the sequences."""
        return self.target or self.drafter  # type: ignore[return-value]

    def take(self, batch: VerifyBatch | DraftBatch) -> None:
        """It came over the wire."""
        self.inbox.append((batch, self._clock()))

    def release(self, sequence_ids) -> None:
        """As the link does it: a batch without work, in its turn."""
        kind = VerifyBatch if self.role is Role.TARGET else DraftBatch
        self.take(kind(BatchId(0), (), tuple(sequence_ids)))

    def work(self) -> None:
        """Serve the oldest batch."""
        batch, arrived = self.inbox.popleft()
        serve = self.target.verify if self.target else self.drafter.draft  # type: ignore[union-attr]
        reply = serve(batch, arrived)  # type: ignore[arg-type]
        for result in reply.results:  # nobody sends a healthy worker what it has to refuse
            assert result.status is EntryStatus.OK, f"{self.worker_id}: {result}"
        if batch.entries:
            self.outbox.append(reply)

    def reconnect(self, names) -> None:
        """A new connection: nothing is under way, and what may be held is released first."""
        self.inbox.clear()
        self.outbox.clear()
        self.sessions.forget(names)

    @property
    def joining(self) -> WorkerJoined:
        """What the scheduler hears of it."""
        return WorkerJoined(self.worker_id, self.role, self.num_slots, CAPACITY, self.layout.value)


@dataclass
class Request:
    """What was asked, and what came of it."""

    prompt: tuple[int, ...]
    max_tokens: int
    stops: tuple[int, ...] = ()
    num_speculative_tokens: int | None = None
    tokens: list[int] = field(default_factory=list)
    end: object = None
    is_cancelled: bool = False

    def note(self, event: object) -> None:
        """The ledger's sink."""
        assert self.end is None, f"{event} after {self.end}"
        if isinstance(event, Delta):
            self.tokens += event.token_ids
        else:
            self.end = event

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
        spec = SequenceSpec(
            name, request.prompt, length + request.max_tokens, frozenset(request.stops), ()
        )
        self.driver.ledger.open(spec, TextStream(None), request.note, self.clock())
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


def finished_well(request: Request) -> bool:
    """It came to its end without an error."""
    return isinstance(request.end, Completed)
