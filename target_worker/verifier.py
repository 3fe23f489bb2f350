"""Verification: entries in, decisions out. The torch side of TargetService, free of the wire.

For every entry: reconcile with what is held (`core.sessions`), feed what is lacking and the draft
tokens in one pass, accept the prefix that equals the target's own choices (`core.acceptance`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exspec.core.acceptance import accept
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.core.errors import CallerError, InvalidRequestError
from exspec.core.ids import SequenceId
from exspec.core.rounds import (
    EntryStatus,
    PassTimings,
    VerifyBatch,
    VerifyEntry,
    VerifyReply,
    VerifyResult,
)
from exspec.core.session_rules import SessionRules
from exspec.core.sessions import Feed, Refusal, Repeat, SessionTable
from exspec.engine.rows import PassOutput, PassRunner, RowInput
from exspec.runtime.clock import Clock

if TYPE_CHECKING:
    from exspec.engine.choosing.choosing import Choosing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry that takes part in the pass."""

    entry: VerifyEntry
    feed: Feed
    draft_tokens: tuple[int, ...]
    choosing: Choosing | None
    scored: tuple[int, ...]
    """Tokens of the prompt that follow those of `feed`, if their logprobs are wanted."""


class Verifier:
    """Owns the sessions and the runner of one target worker; one thread calls it."""

    def __init__(self, runner: PassRunner, clock: Clock, *, orphan_seconds: float) -> None:
        self._runner = runner
        self._clock = clock
        self._orphan_seconds = orphan_seconds
        self._vocab_size = runner.facts.vocab_size
        self._sessions = SessionTable[VerifyResult](runner.num_slots)
        self._rules = SessionRules(self._open_choosing)

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
                result = self._failed(row.entry, "the pass failed")
            elif index in output.failed_rows:
                result = self._failed(row.entry, "the model's logits are not finite")
            else:
                result = self._decide(row, output, index)
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
        try:
            ready = self._rules.of(entry)
        except CallerError as error:
            return VerifyResult(entry.key, EntryStatus.INVALID, 0, detail=_detail(error))
        except Exception:  # whatever it was, the other entries are served
            logger.exception("verify.rules_failed sequence=%s", entry.key.sequence_id)
            return self._failed(entry, "the rules could not be made ready")
        choosing = None if ready is None else ready.choosing
        match self._admit(entry, choosing, now):
            case Refusal(status, kv_length, detail):
                return VerifyResult(entry.key, status, kv_length, detail=detail)
            case Repeat(result):
                return result
            case Feed() as feed:
                self._rules.keep(entry.key.sequence_id, ready)
                scored = _scored(entry, choosing)
                return _Row(entry, feed, self._usable(entry.draft_tokens), choosing, scored)

    def _admit(
        self, entry: VerifyEntry, choosing: Choosing | None, now: float
    ) -> Feed | Refusal | Repeat[VerifyResult]:
        """Tokens after which a prompt's token is to be scored are fed, held or not: what is
        answered depends on the entry alone.
        """
        is_scored = _num_scored(entry, choosing) > 0
        most_kept = 0 if is_scored else None
        return self._sessions.admit(
            entry.key, entry.start, entry.tokens, now=now, most_kept=most_kept
        )

    def _open_choosing(self, rules: ChoiceRules) -> Choosing | None:
        return None if rules.is_plain else self._runner.open_choosing(rules)

    def _problem(self, entry: VerifyEntry) -> str | None:
        num_positions = entry.end + len(entry.draft_tokens)
        if num_positions > self._runner.capacity:
            return f"{num_positions} positions asked, {self._runner.capacity} is the bound"
        known = entry.tokens if entry.next_token is None else (*entry.tokens, entry.next_token)
        unknown = [token for token in known if not 0 <= token < self._vocab_size]
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
                choosing=row.choosing,
                history=self._history(row),
                scored=row.scored,
            )
            for row in rows
        ]
        try:
            return self._runner.forward(inputs)
        except Exception:  # whatever it was, the rows are forgotten and the worker goes on
            logger.exception("verify.pass_failed rows=%d", len(rows))
            return None

    def _history(self, row: _Row) -> tuple[int, ...]:
        """What came before the tokens that are fed, if it matters."""
        if row.choosing is None or not row.choosing.rules.needs_history:
            return ()
        return self._sessions.held_tokens(row.entry.key.sequence_id, row.feed.start)

    def _decide(self, row: _Row, output: PassOutput, index: int) -> VerifyResult:
        """Accept and record. Draft tokens count as wrong from where nothing could be chosen:
        the model gave no finite numbers, or the rules left no token.
        """
        entry, choices = row.entry, output.choices[index]
        if index in output.stuck_rows:
            return self._stuck(row)
        accepted: tuple[int, ...] = ()
        bonus_token: int | None = None
        if not entry.is_prefill:
            acceptance = accept(row.draft_tokens[: len(choices) - 1], choices)
            accepted = row.draft_tokens[: acceptance.num_accepted]
            bonus_token = acceptance.bonus_token
        scored = _of_row(output.scored, index)
        result = VerifyResult(
            entry.key,
            EntryStatus.OK,
            kv_length=entry.end + len(accepted),
            num_accepted=len(accepted),
            bonus_token=bonus_token,
            logprobs=_of_row(output.logprobs, index)[: len(accepted) + 1],
            prompt_start=row.feed.start + 1 if scored else 0,
            prompt_logprobs=scored,
        )
        self._sessions.record(entry.key, accepted, result)
        return result

    def _stuck(self, row: _Row) -> VerifyResult:
        """The entry's tokens are held; nothing can follow them, however often it is asked."""
        entry, choosing = row.entry, row.choosing
        assert choosing is not None
        fields = ", ".join(_removing(choosing.rules, entry.end)) or "sampling"
        reason = choosing.problem or "no token is left to choose"
        detail = f"{fields}: {reason} at position {entry.end}"
        result = VerifyResult(entry.key, EntryStatus.INVALID, entry.end, detail=detail)
        self._sessions.record(entry.key, (), result)
        return result

    def _failed(self, entry: VerifyEntry, detail: str) -> VerifyResult:
        self._forget(entry.key.sequence_id)
        return VerifyResult(entry.key, EntryStatus.FAILED, 0, detail=detail)

    def _forget(self, sequence_id: SequenceId) -> None:
        self._rules.drop(sequence_id)
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


def _detail(error: CallerError) -> str:
    """The error in words, the request's field first if it names one."""
    field = error.field if isinstance(error, InvalidRequestError) else ""
    is_named = not field or error.message.startswith(f"{field}: ")
    return error.message if is_named else f"{field}: {error.message}"


def _num_scored(entry: VerifyEntry, choosing: Choosing | None) -> int:
    """How many tokens of the entry are followed by one of the prompt whose logprobs are wanted."""
    if choosing is None or choosing.rules.num_prompt_logprobs is None:
        return 0
    num_followed = len(entry.tokens) - (entry.next_token is None)
    return max(0, min(num_followed, choosing.rules.num_prompt_tokens - entry.start - 1))


def _scored(entry: VerifyEntry, choosing: Choosing | None) -> tuple[int, ...]:
    """What follows the first tokens of the entry; see `_num_scored`."""
    last = () if entry.next_token is None else (entry.next_token,)
    return (*entry.tokens[1:], *last)[: _num_scored(entry, choosing)]


def _of_row(
    logprobs: tuple[tuple[TokenLogprobs, ...], ...], index: int
) -> tuple[TokenLogprobs, ...]:
    """A pass in which no row wants any has none at all."""
    return logprobs[index] if logprobs else ()


def _removing(rules: ChoiceRules, position: int) -> list[str]:
    """The request's fields that remove tokens at a position."""
    is_early = position - rules.num_prompt_tokens < rules.min_tokens
    given = {
        "allowed_token_ids": rules.allowed_token_ids,
        "banned_token_ids": rules.banned_token_ids,
        "bad_words": rules.bad_words,
        "min_tokens": is_early and rules.ending_token_ids,
        "structured": rules.grammar,
    }
    return [field for field, value in given.items() if value]
