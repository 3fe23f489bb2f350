"""Drafting: entries in, proposals out, whatever proposes them. Free of torch and the wire.

The drafter keeps what it holds of every sequence across rounds (`core.sessions`): after a round it
keeps the longest common prefix of what it drafted and what was committed, and feeds the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from exspec.core.ids import SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryStatus,
    PassTimings,
)
from exspec.core.sessions import Feed, Refusal, Repeat, SessionTable
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A sequence to propose for: feed `feed.tokens`, then propose up to `num_draft_tokens`.

    `log` is the whole committed log, `feed.tokens` included.
    """

    feed: Feed
    log: tuple[int, ...]
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Proposals:
    """One list per row. The last proposed token of a row was not fed; `num_fed` counts the rest.

    Of `failed_rows` not even the committed tokens could be fed.
    """

    tokens: tuple[tuple[int, ...], ...]
    num_fed: tuple[int, ...]
    align_seconds: float = 0.0
    forward_seconds: float = 0.0
    num_moved_rows: int = 0
    failed_rows: frozenset[int] = frozenset()


class Proposer(Protocol):
    """Where proposals come from: a model, or the prompt itself."""

    @property
    def num_slots(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def vocab_size(self) -> int:
        """Ids it knows are below this."""
        ...

    def propose(self, rows: list[ProposalRow]) -> Proposals: ...
    def release(self, slot: int) -> None: ...


class Drafter:
    """Owns the sessions and the proposer of one draft worker; one thread calls it."""

    def __init__(self, proposer: Proposer, clock: Clock, *, orphan_seconds: float) -> None:
        self._proposer = proposer
        self._clock = clock
        self._orphan_seconds = orphan_seconds
        self._sessions = SessionTable[DraftResult](proposer.num_slots)

    @property
    def num_sequences(self) -> int:
        """Sequences held now."""
        return len(self._sessions)

    def draft(self, batch: DraftBatch, arrived: float) -> DraftReply:
        """Serve one batch that arrived at `arrived` on the clock. Never raises for a bad entry."""
        started = self._clock()
        orphans = self._sessions.expired(before=started - self._orphan_seconds)
        self.forget((*batch.released, *orphans))
        results: dict[SequenceId, DraftResult] = {}
        entries: list[DraftEntry] = []
        rows: list[ProposalRow] = []
        for entry in batch.entries:
            answer = self._prepare(entry, started)
            if isinstance(answer, ProposalRow):
                entries.append(entry)
                rows.append(answer)
            else:
                results[entry.key.sequence_id] = answer
        proposals = self._propose(rows)
        for index, entry in enumerate(entries):
            results[entry.key.sequence_id] = self._answer(entry, proposals, index)
        ordered = tuple(results[entry.key.sequence_id] for entry in batch.entries)
        timings = self._timings(arrived, started, rows, proposals)
        return DraftReply(batch.batch_id, ordered, timings)

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Free the slots of sequences nobody will ask for again; unknown ones are ignored."""
        for sequence_id in sequence_ids:
            self._forget(sequence_id)

    def _prepare(self, entry: DraftEntry, now: float) -> ProposalRow | DraftResult:
        if entry.end > self._proposer.capacity:
            detail = f"{entry.end} tokens, the draft's context is {self._proposer.capacity}"
            return DraftResult(entry.key, EntryStatus.NO_CAPACITY, 0, detail=detail)
        unknown = [token for token in entry.tokens if not 0 <= token < self._proposer.vocab_size]
        if unknown:
            detail = f"token id {unknown[0]} is outside the draft's vocabulary"
            return DraftResult(entry.key, EntryStatus.INVALID, 0, detail=detail)
        match self._sessions.admit(entry.key, entry.start, entry.tokens, now=now):
            case Refusal(status, kv_length, detail):
                return DraftResult(entry.key, status, kv_length, detail=detail)
            case Repeat(result):
                return result
            case Feed() as feed:
                # The last proposal is not fed, so K proposals need K - 1 more positions.
                room = self._proposer.capacity - entry.end + 1
                log = self._sessions.held_tokens(entry.key.sequence_id)
                return ProposalRow(feed, log, min(entry.num_draft_tokens, room))

    def _propose(self, rows: list[ProposalRow]) -> Proposals | None:
        if not rows:
            return Proposals((), ())
        try:
            return self._proposer.propose(rows)
        except Exception:  # whatever it was, the rows are forgotten and the worker goes on
            logger.exception("draft.pass_failed rows=%d", len(rows))
            return None

    def _answer(self, entry: DraftEntry, proposals: Proposals | None, index: int) -> DraftResult:
        if proposals is None:
            return self._failed(entry, "the pass failed")
        if index in proposals.failed_rows:
            return self._failed(entry, "the draft's logits are not finite")
        tokens = proposals.tokens[index]
        result = DraftResult(entry.key, EntryStatus.OK, entry.end, tokens)
        self._sessions.record(entry.key, tokens[: proposals.num_fed[index]], result)
        return result

    def _failed(self, entry: DraftEntry, detail: str) -> DraftResult:
        self._forget(entry.key.sequence_id)
        return DraftResult(entry.key, EntryStatus.FAILED, 0, detail=detail)

    def _forget(self, sequence_id: SequenceId) -> None:
        slot = self._sessions.forget(sequence_id)
        if slot is not None:
            self._proposer.release(slot)

    def _timings(
        self,
        arrived: float,
        started: float,
        rows: list[ProposalRow],
        proposals: Proposals | None,
    ) -> PassTimings:
        return PassTimings(
            queue_seconds=started - arrived,
            align_seconds=proposals.align_seconds if proposals else 0.0,
            forward_seconds=proposals.forward_seconds if proposals else 0.0,
            total_seconds=self._clock() - started,
            num_rows=len(rows),
            num_tokens=sum(len(row.feed.tokens) for row in rows)
            + (sum(proposals.num_fed) if proposals else 0),
            num_moved_rows=proposals.num_moved_rows if proposals else 0,
        )
