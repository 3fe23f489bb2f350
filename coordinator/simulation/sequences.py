"""Logs as lengths: which drafts are accepted, when a sequence ends. No tokens, no time.

Whether the draft token at a place of the log is accepted is drawn once per place, not per round:
two runs that cut the same log into different rounds meet the same luck, so that policies and draft
lengths can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from coordinator.scheduler.commands import DraftOrder, VerifyOrder
from coordinator.scheduler.events import DraftOutcome, VerifyOutcome
from coordinator.simulation.workload import SimulatedRequest
from exspec.core.acceptance import speculation_cap
from exspec.core.ids import SequenceId
from exspec.core.rounds import EntryStatus


@dataclass(slots=True)
class SimulatedSequence:
    """One log. Changed by `Sequences` only."""

    request: SimulatedRequest
    length: int
    luck: Random
    is_liked: list[bool] = field(default_factory=list[bool])
    """By place after the prompt: whether a draft token there is accepted."""

    def num_accepted(self, num_drafts: int) -> int:
        """How many of the next draft tokens agree with the target."""
        first = self.length - self.request.prompt_length
        while len(self.is_liked) < first + num_drafts:
            self.is_liked.append(self.luck.random() < self.request.acceptance)
        for count in range(num_drafts):
            if not self.is_liked[first + count]:
                return count
        return num_drafts


class Sequences:
    """Owns the logs of all sequences that have not ended."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._live: dict[SequenceId, SimulatedSequence] = {}

    def open(self, request: SimulatedRequest) -> None:
        """A log that holds its prompt."""
        luck = Random(f"{self._seed}/{request.sequence_id}")
        self._live[request.sequence_id] = SimulatedSequence(request, request.prompt_length, luck)

    def drafted(self, order: DraftOrder) -> DraftOutcome:
        """A draft worker always finds as many tokens as it was asked for."""
        return DraftOutcome(
            order.key.sequence_id, EntryStatus.OK, order.num_draft_tokens, order.end
        )

    def verified(self, order: VerifyOrder) -> VerifyOutcome:
        """Commit what a verify of this order decides; nothing for a prefill chunk."""
        name = order.key.sequence_id
        if order.is_prefill or name not in self._live:
            return VerifyOutcome(name, EntryStatus.OK, 0, order.end)
        sequence = self._live[name]
        num_remaining = sequence.request.max_length - sequence.length
        num_drafts = speculation_cap(order.num_draft_tokens, num_remaining)
        num_accepted = sequence.num_accepted(num_drafts)
        sequence.length += num_accepted + 1
        is_finished = sequence.length == sequence.request.max_length
        if is_finished:
            del self._live[name]
        kv_length = order.end + num_accepted
        return VerifyOutcome(name, EntryStatus.OK, num_accepted + 1, kv_length, is_finished)
