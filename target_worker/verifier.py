"""Verification: entries in, decisions out. The torch side of TargetService, free of the wire.

For every entry: reconcile with what is held (`core.sessions`), feed what is lacking and the draft
tokens in one pass, accept the prefix that equals the target's own choices (`core.acceptance`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from exspec.core.acceptance import accept
from exspec.core.ids import SequenceId
from exspec.core.rounds import (
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)
from exspec.core.sessions import Feed, Refusal, Repeat, SessionTable
from exspec.engine.rows import PassOutput, PassRunner, RowInput
from exspec.runtime.clock import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry that takes part in the pass."""

    entry: VerifyEntry
    feed: Feed
    draft_tokens: tuple[int, ...]


class Verifier:
    """Owns the sessions and the runner of one target worker; one thread calls it."""

    def __init__(self, runner: PassRunner, clock: Clock, *, orphan_seconds: float) -> None:
        self._runner = runner
        self._clock = clock
        self._orphan_seconds = orphan_seconds
        self._vocab_size = runner.facts.vocab_size
        self._sessions = SessionTable[VerifyResult](runner.num_slots)

    @property
    def num_sequences(self) -> int:
        """Sequences held now."""
        return len(self._sessions)

    def verify(self, batch: VerifyBatch, arrived: float) -> VerifyReply:
        """Serve one batch that arrived at `arrived` on the clock. Never raises for a bad entry."""
        started = self._clock()
        self.forget((*batch.released, *self._orphans(started)))
        results: dict[SequenceId, VerifyResult] = {}
        rows: list[_Row] = []
        for entry in batch.entries:
            answer = self._prepare(entry, started)
            if isinstance(answer, _Row):
                rows.append(answer)
            else:
                results[entry.key.sequence_id] = answer
        output = self._run(rows)
        for index, row in enumerate(rows):
            if output is None:
                result = self._failed(row, "the pass failed")
            elif index in output.failed_rows:
                result = self._failed(row, "the model's logits are not finite")
            else:
                result = self._decide(row, output.choices[index])
            results[row.entry.key.sequence_id] = result
        ordered = tuple(results[entry.key.sequence_id] for entry in batch.entries)
        return VerifyReply(batch.batch_id, ordered, self._timings(arrived, started, rows, output))

    def forget(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Free the slots of sequences nobody will ask for again; unknown ones are ignored."""
        for sequence_id in sequence_ids:
            self._forget(sequence_id)

    def _prepare(self, entry: VerifyEntry, now: float) -> _Row | VerifyResult:
        problem = self._problem(entry)
        if problem is not None:
            return VerifyResult(entry.key, EntryStatus.INVALID, 0, detail=problem)
        match self._sessions.admit(entry.key, entry.start, entry.tokens, now=now):
            case Refusal(status, kv_length, detail):
                return VerifyResult(entry.key, status, kv_length, detail=detail)
            case Repeat(result):
                return result
            case Feed() as feed:
                return _Row(entry, feed, self._usable(entry.draft_tokens))

    def _problem(self, entry: VerifyEntry) -> str | None:
        num_positions = entry.end + len(entry.draft_tokens)
        if num_positions > self._runner.capacity:
            return f"{num_positions} positions asked, {self._runner.capacity} is the bound"
        unknown = [token for token in entry.tokens if not 0 <= token < self._vocab_size]
        if unknown:
            return f"token id {unknown[0]} is outside the vocabulary of {self._vocab_size}"
        return None

    def _usable(self, draft_tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Drafts up to the first id the target does not know: that one can only be rejected."""
        for index, token in enumerate(draft_tokens):
            if not 0 <= token < self._vocab_size:
                return draft_tokens[:index]
        return draft_tokens

    def _run(self, rows: list[_Row]) -> PassOutput | None:
        if not rows:
            return None
        inputs = [
            RowInput(
                slot=row.feed.slot,
                start=row.feed.start,
                tokens=row.feed.tokens + row.draft_tokens,
                num_choices=0 if row.entry.is_prefill else len(row.draft_tokens) + 1,
            )
            for row in rows
        ]
        try:
            return self._runner.forward(inputs)
        except Exception:  # whatever it was, the rows are forgotten and the worker goes on
            logger.exception("verify.pass_failed rows=%d", len(rows))
            return None

    def _decide(self, row: _Row, choices: tuple[int, ...]) -> VerifyResult:
        """Accept and record. Draft tokens the model gave no finite numbers for count as wrong."""
        entry = row.entry
        if entry.is_prefill:
            result = VerifyResult(entry.key, EntryStatus.OK, entry.end)
            self._sessions.record(entry.key, (), result)
            return result
        acceptance = accept(row.draft_tokens[: len(choices) - 1], choices)
        accepted = row.draft_tokens[: acceptance.num_accepted]
        result = VerifyResult(
            entry.key,
            EntryStatus.OK,
            kv_length=entry.end + acceptance.num_accepted,
            num_accepted=acceptance.num_accepted,
            bonus_token=acceptance.bonus_token,
        )
        self._sessions.record(entry.key, accepted, result)
        return result

    def _failed(self, row: _Row, detail: str) -> VerifyResult:
        self._forget(row.entry.key.sequence_id)
        return VerifyResult(row.entry.key, EntryStatus.FAILED, 0, detail=detail)

    def _forget(self, sequence_id: SequenceId) -> None:
        slot = self._sessions.forget(sequence_id)
        if slot is not None:
            self._runner.release(slot)

    def _orphans(self, now: float) -> tuple[SequenceId, ...]:
        return self._sessions.expired(before=now - self._orphan_seconds)

    def _timings(
        self, arrived: float, started: float, rows: list[_Row], output: PassOutput | None
    ) -> PassTimings:
        return PassTimings(
            queue_seconds=started - arrived,
            align_seconds=output.align_seconds if output else 0.0,
            forward_seconds=output.forward_seconds if output else 0.0,
            total_seconds=self._clock() - started,
            num_rows=len(rows),
            num_tokens=sum(len(row.feed.tokens) + len(row.draft_tokens) for row in rows),
            num_moved_rows=output.num_moved_rows if output else 0,
        )
