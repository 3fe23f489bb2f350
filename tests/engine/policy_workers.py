"""Workers without processes for `policy_world`: the real sessions over tiny models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from coordinator.scheduler.events import WorkerJoined
from coordinator.scheduler.limits import SchedulerLimits
from draft_worker.beside_proposer import BesideProposer
from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.ngram_proposer import NgramProposer
from draft_worker.proposer import Proposer
from draft_worker.rules import SampleMethod
from exspec.core.ids import BatchId, Role, WorkerId
from exspec.core.rounds import DraftBatch, EntryStatus, VerifyBatch
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner
from exspec.engine.rows import PassRunner
from target_worker.verifier import Verifier
from tests.engine.conftest import loaded_family
from tests.engine.tiny import VOCAB_SIZE

CAPACITY = 96


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
        self.open_choosing = runner.open_choosing

    def forward(self, rows):
        output = self._runner.forward(rows)
        choices = tuple(
            tuple(_mistaken(row.end, choice) for choice in own)
            for row, own in zip(rows, output.choices, strict=True)
        )
        return replace(output, choices=choices)


def _mistaken(length: int, choice: int) -> int:
    return choice if crc32(bytes((length, choice % 256))) % 4 else (choice + 1) % VOCAB_SIZE


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
    draft: str = field(default="fallible", repr=False)
    """Who proposes, see `DRAFTS`."""


DRAFTS: dict[str, Callable[[Setting, int], Proposer]] = {
    "fallible": lambda setting, slots: ModelProposer(Fallible(_runner(setting, slots))),
    "equal": lambda setting, slots: ModelProposer(_runner(setting, slots)),
    "likeliest": lambda setting, slots: ModelProposer(_runner(setting, slots), SampleMethod.GREEDY),
    "other": lambda setting, slots: ModelProposer(_runner(setting, slots, seed=9)),
    "beside": lambda setting, slots: _beside(Fallible(_runner(setting, slots))),
    "beside-other": lambda setting, slots: _beside(_runner(setting, slots, seed=9)),
    "ngram": lambda _, slots: NgramProposer(num_slots=slots, longest=3, shortest=1),
}
"""How drafts are made: by the target's model (with mistakes, or none, or without noise), by another
one that knows nothing of it, with look-up beside, or without a model."""


def _beside(runner: PassRunner) -> Proposer:
    return BesideProposer(ModelProposer(runner), longest=3, shortest=1)


def _runner(setting: Setting, num_slots: int, seed: int = 0) -> ModelRunner:
    loaded = loaded_family(setting.family, seed)
    return ModelRunner(loaded, layout=setting.layout, num_slots=num_slots, capacity=CAPACITY)


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
        self.num_slots = num_slots
        self.target = self.drafter = None
        if role is Role.TARGET:
            self.target = Verifier(_runner(setting, num_slots), clock, orphan_seconds=1e9)
        else:
            proposer = DRAFTS[setting.draft](setting, num_slots)
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
            is_stuck = result.status is EntryStatus.INVALID and "no token is left" in result.detail
            assert result.status is EntryStatus.OK or is_stuck, f"{self.worker_id}: {result}"
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
