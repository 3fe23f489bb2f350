"""Verification against a model one can compute by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import VOCAB, ToyRunner, continuation, noise_language

from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import EntryKey, EntryStatus, VerifyBatch, VerifyEntry, VerifyResult
from target_worker.verifier import Verifier

PROMPT = (11, 0, 2, 11, 30)


class Desk:
    """A verifier, its runner, and a clock that only moves by hand."""

    def __init__(self, **runner: int) -> None:
        self.now = 100.0
        self.runner = ToyRunner(**runner)
        self.verifier = Verifier(self.runner, lambda: self.now, orphan_seconds=10.0)
        self._num_batches = 0

    def verify(self, *entries: VerifyEntry, released: tuple[str, ...] = ()) -> list[VerifyResult]:
        self._num_batches += 1
        batch = VerifyBatch(
            BatchId(self._num_batches), entries, tuple(SequenceId(name) for name in released)
        )
        reply = self.verifier.verify(batch, self.now)
        assert reply.batch_id == batch.batch_id
        assert [r.key for r in reply.results] == [e.key for e in entries]
        assert not self.runner.violations
        return list(reply.results)

    def one(self, *arguments: object, **keywords: object) -> VerifyResult:
        (result,) = self.verify(entry(*arguments, **keywords))  # type: ignore[arg-type]
        return result


def entry(
    tokens: tuple[int, ...],
    drafts: tuple[int, ...] = (),
    *,
    start: int = 0,
    round_index: int = 1,
    epoch: int = 0,
    name: str = "s",
    is_prefill: bool = False,
) -> VerifyEntry:
    key = EntryKey(SequenceId(name), epoch, round_index)
    return VerifyEntry(key, start, tokens, drafts, is_prefill)


@pytest.mark.parametrize("num_right", range(6))
def test_the_agreed_prefix_is_accepted_and_the_bonus_follows(num_right):
    truth = continuation(PROMPT, 6)
    wrong = continuation((*PROMPT, *truth[:num_right]), 5, noise_language)
    drafts = (*truth[:num_right], *wrong)[:5]
    desk = Desk()
    result = desk.one(PROMPT, drafts)
    assert result.status is EntryStatus.OK
    assert result.num_accepted == num_right
    assert result.bonus_token == truth[num_right]
    assert result.kv_length == len(PROMPT) + num_right
    # What was rejected left no trace: the next round goes on as if it had never been fed.
    log = (*PROMPT, *truth[: num_right + 1])
    follow = desk.one(log[-1:], start=len(log) - 1, round_index=2)
    assert follow.bonus_token == continuation(log, 1)[0]
    assert desk.runner.num_fed == [len(PROMPT) + 5, 1]


def test_without_drafts_it_is_plain_decoding():
    desk = Desk()
    log = list(PROMPT)
    start = 0
    for round_index in range(1, 8):
        result = desk.one(tuple(log[start:]), start=start, round_index=round_index)
        start = len(log)
        log.append(result.bonus_token)
    assert tuple(log[len(PROMPT) :]) == continuation(PROMPT, 7)
    assert desk.runner.num_fed == [len(PROMPT)] + [1] * 6


def test_a_prefill_in_chunks_chooses_nothing_until_its_last_one():
    desk = Desk()
    first = desk.one(PROMPT[:2], is_prefill=True)
    second = desk.one(PROMPT[2:4], start=2, round_index=2, is_prefill=True)
    assert [(r.status, r.kv_length, r.bonus_token) for r in (first, second)] == [
        (EntryStatus.OK, 2, None),
        (EntryStatus.OK, 4, None),
    ]
    assert [rows[0].num_choices for rows in desk.runner.passes] == [0, 0]
    last = desk.one(PROMPT[4:], start=4, round_index=3)
    assert last.bonus_token == continuation(PROMPT, 1)[0]


def test_a_repeated_call_returns_the_stored_reply_without_a_pass():
    desk = Desk()
    first = desk.one(PROMPT, continuation(PROMPT, 2))
    assert desk.one(PROMPT, continuation(PROMPT, 2)) == first
    assert len(desk.runner.passes) == 1


def test_older_rounds_and_epochs_are_stale():
    desk = Desk()
    log = (*PROMPT, desk.one(PROMPT, round_index=4, epoch=2).bonus_token)
    assert desk.one(PROMPT, round_index=3, epoch=2).status is EntryStatus.STALE
    assert desk.one(PROMPT, round_index=9, epoch=1).status is EntryStatus.STALE
    assert len(desk.runner.passes) == 1
    result = desk.one(log[-1:], start=len(PROMPT), round_index=5, epoch=2)
    assert result.bonus_token == continuation(log, 1)[0]


def test_what_it_lacks_is_said_and_the_rest_of_the_log_helps():
    desk = Desk()
    unknown = desk.one(PROMPT[3:], start=3)
    assert (unknown.status, unknown.kv_length) == (EntryStatus.LACKS_TOKENS, 0)
    desk.one(PROMPT[:2], is_prefill=True)
    gap = desk.one(PROMPT[3:], start=3, round_index=2)
    assert (gap.status, gap.kv_length) == (EntryStatus.LACKS_TOKENS, 2)
    result = desk.one(PROMPT[2:], start=2, round_index=3)
    assert result.bonus_token == continuation(PROMPT, 1)[0]
    assert desk.runner.num_fed == [2, 3]


def test_a_new_epoch_with_the_whole_log_reuses_what_is_held():
    desk = Desk()
    truth = continuation(PROMPT, 3)
    desk.one(PROMPT, truth[:2])
    log = (*PROMPT, *truth)
    result = desk.one(log, epoch=1)
    assert result.bonus_token == continuation(log, 1)[0]
    assert desk.runner.num_fed == [len(PROMPT) + 2, 1]


def test_a_new_epoch_without_the_whole_log_trusts_nothing():
    desk = Desk()
    desk.one(PROMPT)
    result = desk.one((continuation(PROMPT, 1)[0],), start=len(PROMPT), epoch=1)
    assert (result.status, result.kv_length) == (EntryStatus.LACKS_TOKENS, 0)


def test_a_new_epoch_with_another_log_keeps_the_common_prefix_only():
    desk = Desk()
    desk.one(PROMPT, continuation(PROMPT, 2))
    other = (*PROMPT[:2], 77, 78)
    assert desk.one(other, epoch=1).bonus_token == continuation(other, 1)[0]
    assert desk.runner.passes[-1][0].start == 2


def test_no_slot_left_is_no_capacity_until_one_is_released():
    desk = Desk(num_slots=2)
    desk.verify(entry(PROMPT, name="a"), entry(PROMPT, name="b"))
    assert desk.one(PROMPT, name="c").status is EntryStatus.NO_CAPACITY
    (result,) = desk.verify(entry(PROMPT, name="c"), released=("a", "never heard of"))
    assert result.status is EntryStatus.OK
    assert desk.verifier.num_sequences == 2


def test_a_slot_that_changed_hands_holds_nothing_of_the_old_sequence():
    desk = Desk(num_slots=1)
    desk.one(PROMPT, name="a")
    other = (9, 9, 9)
    (result,) = desk.verify(entry(other, name="b"), released=("a",))
    assert result.bonus_token == continuation(other, 1)[0]


@pytest.mark.parametrize(
    "bad",
    [
        entry(tuple(range(5, 38)), name="bad"),
        entry(tuple(range(5, 35)), (5, 6, 7), name="bad"),
        entry((11, VOCAB), name="bad"),
        entry((2**32 - 1,), name="bad"),
        entry((11, -1), name="bad"),
    ],
    ids=["too long", "too long with its drafts", "outside the vocabulary", "far outside", "below"],
)
def test_an_impossible_entry_is_invalid_and_touches_nothing_else(bad):
    desk = Desk(capacity=32)
    good, invalid, other = desk.verify(entry(PROMPT, name="a"), bad, entry((7, 8), name="b"))
    assert invalid.status is EntryStatus.INVALID
    assert invalid.detail
    assert good.bonus_token == continuation(PROMPT, 1)[0]
    assert other.bonus_token == continuation((7, 8), 1)[0]
    assert desk.verifier.num_sequences == 2


def test_the_last_place_of_the_context_can_be_used():
    desk = Desk(capacity=len(PROMPT) + 2)
    truth = continuation(PROMPT, 3)
    result = desk.one(PROMPT, truth[:2])
    assert (result.num_accepted, result.bonus_token) == (2, truth[2])


def test_an_invalid_entry_of_a_known_sequence_leaves_it_as_it_was():
    desk = Desk()
    log = (*PROMPT, desk.one(PROMPT).bonus_token)
    bad = desk.one((VOCAB,), start=len(PROMPT), round_index=2)
    assert bad.status is EntryStatus.INVALID
    result = desk.one(log[-1:], start=len(PROMPT), round_index=3)
    assert result.bonus_token == continuation(log, 1)[0]


def test_a_draft_outside_the_vocabulary_is_rejected_and_is_no_error():
    """Padded vocabularies differ: a draft may know ids that the target has no row for."""
    truth = continuation(PROMPT, 4)
    desk = Desk()
    result = desk.one(PROMPT, (truth[0], VOCAB + 5, truth[2]))
    assert (result.status, result.num_accepted, result.bonus_token) == (
        EntryStatus.OK,
        1,
        truth[1],
    )


@pytest.mark.parametrize(
    "failure", [RuntimeError("x"), MemoryError(), IndexError("x"), ValueError("x")]
)
def test_a_failing_pass_fails_its_rows_and_the_worker_goes_on(failure, caplog):
    desk = Desk()
    desk.one(PROMPT, name="idle")
    desk.runner.failures.append(failure)
    a, idle, bad = desk.verify(
        entry(PROMPT, name="a"), entry(PROMPT, name="idle"), entry((VOCAB,), name="bad")
    )
    assert (a.status, a.kv_length) == (EntryStatus.FAILED, 0)
    assert idle.status is EntryStatus.OK  # a repeat: not part of the pass
    assert bad.status is EntryStatus.INVALID
    assert "verify.pass_failed" in caplog.text
    assert desk.verifier.num_sequences == 1
    lacks = desk.one((1,), start=len(PROMPT), round_index=2, name="a")
    assert lacks.status is EntryStatus.LACKS_TOKENS
    again = desk.one(PROMPT, epoch=1, name="a")
    assert again.bonus_token == continuation(PROMPT, 1)[0]


def test_sequences_nobody_asks_for_are_forgotten_after_a_while():
    desk = Desk(num_slots=2)
    desk.one(PROMPT, name="orphan")
    desk.now += 6
    desk.one(PROMPT, name="alive")
    desk.now += 6
    desk.verify()
    assert desk.verifier.num_sequences == 1
    assert desk.one((1,), start=5, name="orphan", round_index=2).kv_length == 0


def test_an_empty_batch_runs_no_pass():
    desk = Desk()
    assert desk.verify() == []
    assert desk.runner.passes == []


def test_forgetting_frees_slots_and_ignores_strangers():
    desk = Desk(num_slots=1)
    desk.one(PROMPT)
    desk.verifier.forget([SequenceId("s"), SequenceId("stranger")])
    assert desk.verifier.num_sequences == 0
    assert desk.one(PROMPT, name="t").status is EntryStatus.OK


def test_timings_count_what_was_fed():
    desk = Desk()
    batch = VerifyBatch(BatchId(1), (entry(PROMPT, (9, 9)), entry((7,), name="b")))
    reply = desk.verifier.verify(batch, desk.now - 2)
    assert (reply.timings.num_rows, reply.timings.num_tokens) == (2, len(PROMPT) + 3)
    assert reply.timings.queue_seconds == pytest.approx(2)
    assert reply.timings.forward_seconds > 0


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=6), st.booleans()), max_size=12))
def test_any_course_of_rounds_is_plain_decoding(rounds):
    """Right and wrong drafts, repeats and lost replies: the log is the target's alone."""
    desk = Desk()
    log, held = list(PROMPT), 0
    for round_index, (rights, is_repeated) in enumerate(rounds, start=1):
        drafts: list[int] = []
        for is_right in rights:
            (choice,) = continuation((*log, *drafts), 1)
            drafts.append(choice if is_right else 5 + (choice - 4) % (VOCAB - 5))
        item = entry(tuple(log[held:]), tuple(drafts), start=held, round_index=round_index)
        (result,) = desk.verify(item)
        if is_repeated:
            assert desk.verify(item) == [result]
        held = result.kv_length
        log += [*drafts[: result.num_accepted], result.bonus_token]
    assert tuple(log[len(PROMPT) :]) == continuation(PROMPT, len(log) - len(PROMPT))
