"""Drafting across rounds: what is proposed, and above all how little is fed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import VOCAB, ToyRunner, continuation, draft_language, target_language

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.proposer import ProposalRow
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import DraftBatch, DraftEntry, DraftResult, EntryKey, EntryStatus
from exspec.core.sessions import Feed

PROMPT = (11, 0, 2, 11, 30)


class Desk:
    """A drafter over a model, and a clock that only moves by hand."""

    def __init__(self, **runner: int) -> None:
        self.now = 100.0
        self.runner = ToyRunner(draft_language, **runner)
        proposer = ModelProposer(self.runner)
        self.drafter = Drafter(proposer, lambda: self.now, orphan_seconds=10.0)
        self._num_batches = 0

    def draft(self, *entries: DraftEntry, released: tuple[str, ...] = ()) -> list[DraftResult]:
        self._num_batches += 1
        names = tuple(SequenceId(name) for name in released)
        reply = self.drafter.draft(DraftBatch(BatchId(self._num_batches), entries, names), self.now)
        assert [r.key for r in reply.results] == [e.key for e in entries]
        assert not self.runner.violations
        return list(reply.results)

    def fed(self) -> list[int]:
        """Tokens fed in each pass since this was last asked."""
        counts = self.runner.num_fed
        self.runner.passes.clear()
        return counts


def entry(
    tokens: tuple[int, ...],
    num_draft_tokens: int = 3,
    *,
    start: int = 0,
    round_index: int = 1,
    epoch: int = 0,
    name: str = "s",
) -> DraftEntry:
    key = EntryKey(SequenceId(name), epoch, round_index)
    return DraftEntry(key, start, tokens, num_draft_tokens)


def _drafted(log: tuple[int, ...], count: int) -> tuple[int, ...]:
    return continuation(log, count, draft_language)


def test_an_entry_without_drafts_is_fed_and_the_next_one_feeds_the_rest_alone():
    desk = Desk()
    (result,) = desk.draft(entry(PROMPT[:3], 0))
    assert (result.status, result.kv_length) == (EntryStatus.OK, 3)
    assert result.draft_tokens == ()
    assert desk.fed() == [3]
    (result,) = desk.draft(entry(PROMPT[3:], 2, start=3, round_index=2))
    assert result.draft_tokens == _drafted(PROMPT, 2)
    assert desk.fed() == [len(PROMPT) - 3, 1]


def test_feeding_and_drafting_share_the_first_pass():
    desk = Desk()
    fed, drafted = desk.draft(entry(PROMPT, 0, name="a"), entry(PROMPT, 2, name="b"))
    assert (fed.kv_length, fed.draft_tokens) == (len(PROMPT), ())
    assert drafted.draft_tokens == _drafted(PROMPT, 2)
    assert desk.fed() == [2 * len(PROMPT), 1]


def test_it_proposes_what_the_model_says():
    desk = Desk()
    (result,) = desk.draft(entry(PROMPT, 4))
    assert result.status is EntryStatus.OK
    assert result.draft_tokens == _drafted(PROMPT, 4)
    assert result.kv_length == len(PROMPT)
    assert desk.fed() == [len(PROMPT), 1, 1, 1]


def test_after_full_acceptance_it_feeds_the_token_it_missed_and_the_bonus():
    desk = Desk()
    (first,) = desk.draft(entry(PROMPT, 3))
    desk.fed()
    log = (*PROMPT, *first.draft_tokens, 50)
    (second,) = desk.draft(entry(log[len(PROMPT) :], 3, start=len(PROMPT), round_index=2))
    assert second.draft_tokens == _drafted(log, 3)
    assert desk.fed() == [2, 1, 1]


@pytest.mark.parametrize("num_accepted", [0, 1, 2])
def test_after_a_rejection_it_feeds_the_targets_own_token_only(num_accepted):
    desk = Desk()
    (first,) = desk.draft(entry(PROMPT, 4))
    desk.fed()
    kept = first.draft_tokens[:num_accepted]
    other = 5 + (first.draft_tokens[num_accepted] - 4) % 60
    log = (*PROMPT, *kept, other)
    (second,) = desk.draft(entry(log[len(PROMPT) :], 4, start=len(PROMPT), round_index=2))
    assert second.draft_tokens == _drafted(log, 4)
    assert desk.fed() == [1, 1, 1, 1]


def test_after_rounds_without_it_it_catches_up():
    desk = Desk()
    desk.draft(entry(PROMPT, 1))
    desk.fed()
    log = (*PROMPT, *continuation(PROMPT, 9))
    (result,) = desk.draft(entry(log[len(PROMPT) :], 2, start=len(PROMPT), round_index=10))
    assert result.draft_tokens == _drafted(log, 2)
    assert desk.fed() == [9, 1]


def test_every_row_has_its_own_number_of_drafts():
    desk = Desk()
    logs = [PROMPT, (7,), (8, 9)]
    results = desk.draft(
        *(entry(log, i + 1, name=str(i)) for i, log in enumerate(logs)),
    )
    assert [r.draft_tokens for r in results] == [_drafted(x, i + 1) for i, x in enumerate(logs)]
    assert desk.fed() == [8, 2, 1]


def test_the_end_of_the_context_bounds_the_drafts():
    desk = Desk(capacity=len(PROMPT) + 2)
    (result,) = desk.draft(entry(PROMPT, 9))
    assert result.draft_tokens == _drafted(PROMPT, 3)
    log = (*PROMPT, *continuation(PROMPT, 2))
    (result,) = desk.draft(entry(log[len(PROMPT) :], 9, start=len(PROMPT), round_index=2))
    assert result.draft_tokens == _drafted(log, 1)
    log = (*log, 40)
    (result,) = desk.draft(entry(log[-1:], 9, start=len(log) - 1, round_index=3))
    assert result.status is EntryStatus.NO_CAPACITY
    assert not result.draft_tokens


def test_an_id_it_does_not_know_is_invalid_and_touches_nothing_else():
    desk = Desk()
    good, bad = desk.draft(entry(PROMPT, name="a"), entry((3, VOCAB), name="b"))
    assert good.draft_tokens == _drafted(PROMPT, 3)
    assert (bad.status, bad.draft_tokens) == (EntryStatus.INVALID, ())
    assert desk.drafter.num_sequences == 1


def test_no_slot_left_is_no_capacity():
    desk = Desk(num_slots=1)
    desk.draft(entry(PROMPT, name="a"))
    (full,) = desk.draft(entry(PROMPT, name="b"))
    assert full.status is EntryStatus.NO_CAPACITY
    (result,) = desk.draft(entry((7, 8), name="b"), released=("a",))
    assert result.draft_tokens == _drafted((7, 8), 3)


def test_repeats_stale_rounds_and_gaps():
    desk = Desk()
    (first,) = desk.draft(entry(PROMPT, round_index=5))
    desk.fed()
    assert desk.draft(entry(PROMPT, round_index=5)) == [first]
    (stale,) = desk.draft(entry(PROMPT, round_index=4))
    assert stale.status is EntryStatus.STALE
    (lacks,) = desk.draft(entry((1,), start=30, round_index=6))
    assert lacks.status is EntryStatus.LACKS_TOKENS
    assert lacks.kv_length >= len(PROMPT)
    assert desk.fed() == []


@pytest.mark.parametrize("failing_pass", [0, 1])
def test_a_failing_pass_fails_its_rows_and_the_worker_goes_on(failing_pass, caplog):
    desk = Desk()

    def fail_at_pass() -> None:
        if len(desk.runner.passes) == failing_pass:
            desk.runner.failures.append(ValueError("x"))
            desk.runner.on_pass = lambda: None

    desk.runner.on_pass = fail_at_pass
    results = desk.draft(entry(PROMPT, name="a"), entry((7, 8), name="b"))
    assert [(r.status, r.draft_tokens) for r in results] == [(EntryStatus.FAILED, ())] * 2
    assert "draft.pass_failed" in caplog.text
    assert desk.drafter.num_sequences == 0
    (again,) = desk.draft(entry(PROMPT, epoch=1, name="a"))
    assert again.draft_tokens == _drafted(PROMPT, 3)


def test_sequences_nobody_asks_for_are_forgotten_after_a_while():
    desk = Desk()
    desk.draft(entry(PROMPT, name="orphan"))
    desk.now += 11
    desk.draft()
    assert desk.drafter.num_sequences == 0


@given(
    rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=15),
    gaps=st.lists(st.integers(0, 2), min_size=15, max_size=15),
)
def test_any_course_of_rounds_feeds_only_what_is_new(rounds, gaps):
    """Whatever was accepted: the proposals are the model's, and no more is fed than needed."""
    desk = Desk()
    log, held, known = PROMPT, 0, 0
    for round_index, ((num_accepted, num_wanted), gap) in enumerate(
        zip(rounds, gaps, strict=False), start=1
    ):
        (result,) = desk.draft(entry(log[held:], num_wanted, start=held, round_index=round_index))
        assert result.draft_tokens == _drafted(log, num_wanted)
        assert desk.fed() == [max(1, len(log) - known)] + [1] * (num_wanted - 1)
        held = len(log)
        num_accepted = min(num_accepted, num_wanted)
        fed_ahead = (*log, *result.draft_tokens[: num_wanted - 1])
        log = (*log, *result.draft_tokens[:num_accepted])
        for _ in range(gap + 1):
            log = (*log, target_language(log))
        known = next(
            (i for i, (a, b) in enumerate(zip(fed_ahead, log, strict=False)) if a != b),
            min(len(fed_ahead), len(log)),
        )


class _FailingRunner(ToyRunner):
    """Gives no finite numbers for one token."""

    POISON = 3

    def forward(self, rows):
        output = super().forward(rows)
        failed = frozenset(i for i, row in enumerate(rows) if self.POISON in row.tokens)
        choices = tuple(() if i in failed else c for i, c in enumerate(output.choices))
        return replace(output, choices=choices, failed_rows=failed)


def test_a_proposal_without_finite_numbers_ends_the_row():
    """The language says 3 after two tokens: it is proposed, cannot be fed, and the row ends."""
    runner = _FailingRunner(lambda context: 3 if len(context) == 2 + len(PROMPT) else 7)
    feed = Feed(0, 0, PROMPT)
    other = Feed(1, 0, (1, 2, 3))
    rows = [ProposalRow(feed, PROMPT, 5), ProposalRow(other, (1, 2, 3), 2)]
    proposals = ModelProposer(runner).propose(rows)
    assert proposals.tokens == ((7, 7, 3), ())
    assert proposals.num_fed == (2, 0)
    assert proposals.failed_rows == {1}


def test_a_row_whose_own_tokens_fail_is_forgotten():
    drafter = Drafter(ModelProposer(_FailingRunner()), lambda: 0.0, orphan_seconds=9)
    entries = (entry((1, 2, 3), 2, name="bad"), entry((1, 2, 4), 2, name="good"))
    bad, good = drafter.draft(DraftBatch(BatchId(1), entries), 0.0).results
    assert (bad.status, good.status) == (EntryStatus.FAILED, EntryStatus.OK)
    assert "not finite" in bad.detail
    assert drafter.num_sequences == 1


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_an_id_outside_the_vocabulary_is_invalid_alone(token):
    desk = Desk()
    bad, good = desk.draft(entry((11, token), name="bad"), entry(PROMPT, 2, name="good"))
    assert (bad.status, good.status) == (EntryStatus.INVALID, EntryStatus.OK)
    assert str(token) in bad.detail
