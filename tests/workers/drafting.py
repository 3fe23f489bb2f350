"""Asking a drafter as a coordinator does, for tests of what it proposes over rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toy import VOCAB, ToyRunner, draft_language, target_language
from toy_choices import toy_choice

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from exspec.core.choosing import ChoiceRules
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import (
    DraftBatch,
    DraftEntry,
    DraftReply,
    DraftResult,
    EntryKey,
    EntryStatus,
)

PROMPT = (11, 0, 2, 11, 30)
POISONS = frozenset(range(13, VOCAB, 16))


class Poisoned(ToyRunner):
    """Gives no finite numbers for some tokens: the slot holds what it held before."""

    def forward(self, rows):
        output = super().forward(rows)
        failed = frozenset(i for i, row in enumerate(rows) if POISONS & set(row.tokens))
        for i in failed:
            del self._slots[rows[i].slot][rows[i].start :]
        choices = tuple(() if i in failed else c for i, c in enumerate(output.choices))
        return replace(output, choices=choices, failed_rows=failed)


def make_drafter(runner, num_ahead: int = 0) -> Drafter:
    return Drafter(ModelProposer(runner), lambda: 0.0, orphan_seconds=9, num_ahead=num_ahead)


def ask(log, num_draft_tokens=3, *, start=0, round_index=1, epoch=0, name="s") -> DraftEntry:
    key = EntryKey(SequenceId(name), epoch, round_index)
    return DraftEntry(key, start, tuple(log[start:]), num_draft_tokens)


def reply_of(drafter: Drafter, *entries: DraftEntry, released=()) -> DraftReply:
    return drafter.draft(DraftBatch(BatchId(1), entries, tuple(released)), 0.0)


def result_of(drafter: Drafter, entry: DraftEntry) -> DraftResult:
    (result,) = reply_of(drafter, entry).results
    return result


@dataclass
class Row:
    """What a coordinator knows of a sequence and its draft worker."""

    name: str
    log: tuple[int, ...]
    believed: int = 0
    epoch: int = 0
    round_index: int = 0
    proposals: tuple[int, ...] = ()
    last: DraftEntry | None = None
    rules: ChoiceRules | None = None

    def entry(self, num_draft_tokens: int) -> DraftEntry:
        self.round_index += 1
        entry = ask(
            self.log,
            num_draft_tokens,
            start=min(self.believed, len(self.log) - 1),
            round_index=self.round_index,
            epoch=self.epoch,
            name=self.name,
        )
        self.last = entry if entry.start else replace(entry, rules=self.rules)
        return self.last

    def note(self, result: DraftResult) -> None:
        knows = result.status in (EntryStatus.OK, EntryStatus.LACKS_TOKENS)
        self.believed = result.kv_length if knows else 0
        self.proposals = result.draft_tokens

    def commit(self, num_accepted: int, *, is_guessed: bool) -> None:
        """Some proposals and the bonus token, which may be the draft's next choice, or not."""
        self.log = (*self.log, *self.proposals[:num_accepted])
        language = draft_language if is_guessed else target_language
        choice = toy_choice(language, self.log, self.rules)
        assert choice is not None
        self.log = (*self.log, choice)
        self.proposals = ()
