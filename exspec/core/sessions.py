"""What a worker remembers of the sequences it holds, and how an entry is reconciled with it.

A worker's KV is a cache of the coordinator's token log. This table says which tokens of the log
each slot really holds, so that rollback, catch-up, repeated calls, moves and evictions are one
rule: keep the longest common prefix of what is held and what is committed, feed the rest. Both
workers use it. It knows token ids and slots, and nothing of models, clocks or the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from exspec.core.acceptance import common_prefix_length
from exspec.core.ids import SequenceId
from exspec.core.rounds import EntryKey, EntryStatus

Result = TypeVar("Result")


@dataclass(slots=True)
class Session(Generic[Result]):
    """One sequence's place on a worker. Changed by `SessionTable` only."""

    sequence_id: SequenceId
    slot: int
    epoch: int
    last_used: float
    tokens: list[int] = field(default_factory=list[int])
    """The tokens whose KV the slot holds, from position 0."""
    round_index: int = -1
    """The last round served, -1 before the first."""
    result: Result | None = None
    """The stored reply of that round."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Go on: put `tokens` at positions `start`… of `slot`. There is at least one."""

    slot: int
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Do nothing: answer with this status."""

    status: EntryStatus
    kv_length: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Repeat(Generic[Result]):
    """Do nothing: answer with the stored reply."""

    result: Result


class SessionTable(Generic[Result]):
    """The sessions of one worker; owns the assignment of slots to sequences."""

    def __init__(self, num_slots: int) -> None:
        self._sessions: dict[SequenceId, Session[Result]] = {}
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_free_slots(self) -> int:
        """How many more sequences fit."""
        return len(self._free_slots)

    def admit(
        self,
        key: EntryKey,
        start: int,
        tokens: Sequence[int],
        *,
        now: float,
        most_kept: int | None = None,
    ) -> Feed | Refusal | Repeat[Result]:
        """Reconcile an entry with what is held; opens the session if it is new.

        `tokens` is the log from position `start` on, at least one token; at most the first
        `most_kept` of them (None: all) need no feeding where they are held. After `Feed` the caller
        runs the pass and then calls `record`; if the pass fails it calls `forget`.
        """
        session = self._sessions.get(key.sequence_id)
        if session is not None:
            answered = self._answered(session, key)
            if answered is not None:
                return answered
        elif start > 0:
            return Refusal(EntryStatus.LACKS_TOKENS, 0)
        if session is None:
            session = self._open(key, now)
            if session is None:
                return Refusal(EntryStatus.NO_CAPACITY, 0, "all slots are taken")
        session.last_used = now
        if (refusal := self._begin_epoch(session, key, start)) is not None:
            return refusal
        return self._reconcile(session, start, tokens, most_kept)

    def record(self, key: EntryKey, new_tokens: Sequence[int], result: Result) -> None:
        """Note that the fed tokens and the `new_tokens` after them are held, and the reply."""
        session = self._sessions[key.sequence_id]
        session.tokens.extend(new_tokens)
        session.round_index = key.round_index
        session.result = result

    def forget(self, sequence_id: SequenceId) -> int | None:
        """Drop a session; returns its slot, or None if there was none (dropping is idempotent)."""
        session = self._sessions.pop(sequence_id, None)
        if session is None:
            return None
        self._free_slots.append(session.slot)
        return session.slot

    def expired(self, *, before: float) -> tuple[SequenceId, ...]:
        """Sequences not used since `before`: orphans of a coordinator that went away."""
        return tuple(s.sequence_id for s in self._sessions.values() if s.last_used < before)

    def held_tokens(self, sequence_id: SequenceId, end: int | None = None) -> tuple[int, ...]:
        """The tokens whose KV is held for a sequence, up to position `end` (None: all of them);
        empty if it is unknown.
        """
        session = self._sessions.get(sequence_id)
        return tuple(session.tokens[:end]) if session else ()

    def _open(self, key: EntryKey, now: float) -> Session[Result] | None:
        if not self._free_slots:
            return None
        session = Session[Result](key.sequence_id, self._free_slots.pop(), key.epoch, now)
        self._sessions[key.sequence_id] = session
        return session

    @staticmethod
    def _answered(session: Session[Result], key: EntryKey) -> Refusal | Repeat[Result] | None:
        if key.epoch < session.epoch:
            return Refusal(
                EntryStatus.STALE, len(session.tokens), f"epoch {session.epoch} is being served"
            )
        if key.epoch > session.epoch or key.round_index > session.round_index:
            return None
        if key.round_index == session.round_index and session.result is not None:
            return Repeat(session.result)
        return Refusal(
            EntryStatus.STALE, len(session.tokens), f"round {session.round_index} was served"
        )

    @staticmethod
    def _begin_epoch(session: Session[Result], key: EntryKey, start: int) -> Refusal | None:
        """Also says whether tokens are lacking before `start`."""
        if key.epoch > session.epoch:
            # Tokens before `start` were vouched for under another epoch: only a whole log counts.
            if start > 0:
                session.tokens.clear()
            session.epoch = key.epoch
            session.round_index = -1
            session.result = None
        if start > len(session.tokens):
            return Refusal(EntryStatus.LACKS_TOKENS, len(session.tokens))
        return None

    @staticmethod
    def _reconcile(
        session: Session[Result], start: int, tokens: Sequence[int], most_kept: int | None
    ) -> Feed:
        held = session.tokens
        num_kept = common_prefix_length(held[start:], tokens)
        # The last token is always fed: its logits are what the pass is for.
        feed_from = min(num_kept, len(tokens) - 1)
        if most_kept is not None:
            feed_from = min(feed_from, most_kept)
        del held[start + feed_from :]
        held.extend(tokens[feed_from:])
        return Feed(session.slot, start + feed_from, tuple(tokens[feed_from:]))
