"""Workers without models: token functions and sessions that really keep token lists.

The next token is a hash of the tokens *held by the worker*, so a scheduler that is wrong about
what a worker holds gets wrong tokens. Nothing here imports the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from exspec.core.acceptance import accept, cut_block
from exspec.core.ids import Role
from exspec.core.rounds import DraftEntry, DraftResult, EntryStatus, VerifyEntry, VerifyResult
from exspec.core.sessions import Refusal, Repeat, SessionTable

VOCABULARY_SIZE = 40
STOP_TOKEN = 0


def target_choice(prefix: Sequence[int]) -> int:
    """What the fake target says after a prefix."""
    return crc32(b"target" + bytes(prefix)) % VOCABULARY_SIZE


def draft_choice(prefix: Sequence[int]) -> int:
    """Agrees with the target about three times in four."""
    choice = target_choice(prefix)
    return choice if crc32(b"draft" + bytes(prefix)) % 4 else (choice + 1) % VOCABULARY_SIZE


def draft_length(prefix: Sequence[int], num_wanted: int) -> int:
    """How many tokens are proposed: now and then fewer than wanted, as n-gram proposers do."""
    return num_wanted if crc32(b"length" + bytes(prefix)) % 6 else num_wanted // 2


def expected_log(prompt: Sequence[int], max_length: int) -> list[int]:
    """Plain decoding: the truth."""
    log = list(prompt)
    while len(log) < max_length:
        log.append(target_choice(log))
        if log[-1] == STOP_TOKEN:
            break
    return log


def commit_block(log: list[int], drafts: Sequence[int], result: VerifyResult, cap: int):
    """Append what a verify commits; returns (number of tokens, whether the sequence ended)."""
    assert result.bonus_token is not None
    tokens = [*drafts[: result.num_accepted], result.bonus_token]
    block = cut_block(tokens, stop_token_ids=(STOP_TOKEN,), num_remaining=cap - len(log))
    log.extend(block.tokens)
    return len(block.tokens), block.finish is not None


class FakeWorker:
    """Serves entries as a worker would, in the order they were sent."""

    def __init__(self, worker_id: str, role: Role, num_slots: int, max_length: int) -> None:
        self.worker_id = worker_id
        self.role = role
        self.num_slots = num_slots
        self.max_length = max_length
        self.table: SessionTable = SessionTable(num_slots)

    def serve(self, entry, fault: EntryStatus | None):
        kind = VerifyResult if isinstance(entry, VerifyEntry) else DraftResult
        if fault is EntryStatus.LACKS_TOKENS:
            self.table.forget(entry.key.sequence_id)  # evicted; what follows is natural
        elif fault is not None:
            if fault in (EntryStatus.FAILED, EntryStatus.NO_CAPACITY):
                self.table.forget(entry.key.sequence_id)
            held = len(self.table.held_tokens(entry.key.sequence_id))
            return kind(entry.key, fault, held)
        answer = self.table.admit(entry.key, entry.start, entry.tokens, now=0.0)
        if isinstance(answer, Repeat):
            return answer.result
        if isinstance(answer, Refusal):
            return kind(entry.key, answer.status, answer.kv_length)
        assert answer.tokens, "fed nothing"
        held = list(self.table.held_tokens(entry.key.sequence_id))
        assert len(held) == entry.end
        result, kept = (
            self._verify(entry, held)
            if isinstance(entry, VerifyEntry)
            else self._draft(entry, held)
        )
        assert len(held) + len(kept) <= self.max_length
        self.table.record(entry.key, kept, result)
        return result

    @staticmethod
    def _verify(entry: VerifyEntry, held: list[int]):
        if entry.is_prefill:
            return VerifyResult(entry.key, EntryStatus.OK, len(held)), ()
        drafts = entry.draft_tokens
        choices = [target_choice([*held, *drafts[:i]]) for i in range(len(drafts) + 1)]
        verdict = accept(drafts, choices)
        kept = drafts[: verdict.num_accepted]
        result = VerifyResult(
            entry.key,
            EntryStatus.OK,
            len(held) + len(kept),
            verdict.num_accepted,
            verdict.bonus_token,
        )
        return result, kept

    @staticmethod
    def _draft(entry: DraftEntry, held: list[int]):
        drafts: list[int] = []
        for _ in range(draft_length(held, entry.num_draft_tokens)):
            drafts.append(draft_choice([*held, *drafts]))
        return DraftResult(entry.key, EntryStatus.OK, len(held), tuple(drafts)), drafts[:-1]
