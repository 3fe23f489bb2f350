"""What a worker keeps of a sequence: repeats, staleness, lacking tokens, common prefixes, slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from exspec.core.rounds import EntryKey, EntryStatus
from exspec.core.sessions import Feed, Refusal, Repeat, SessionTable


def key(epoch=0, round_index=0, name="a"):
    return EntryKey(name, epoch, round_index)


def served(table, entry_key, start, tokens, new_tokens=(), result="reply"):
    """Admit, expect a feed, record."""
    answer = table.admit(entry_key, start, tokens, now=0.0)
    assert isinstance(answer, Feed)
    table.record(entry_key, new_tokens, result)
    return answer


def test_a_new_sequence_is_fed_whole():
    table = SessionTable(2)
    assert table.admit(key(), 0, [5, 6], now=0.0) == Feed(slot=0, start=0, tokens=(5, 6))
    assert table.held_tokens("a") == (5, 6)
    assert (len(table), table.num_free_slots) == (1, 1)


def test_accepted_drafts_are_held_and_not_fed_again():
    table = SessionTable(1)
    served(table, key(0, 0), 0, [1, 2], new_tokens=[3, 4])
    feed = served(table, key(0, 1), 2, [3, 4, 9])
    assert (feed.start, feed.tokens) == (4, (9,))
    assert table.held_tokens("a") == (1, 2, 3, 4, 9)


def test_what_was_drafted_and_not_committed_is_dropped():
    table = SessionTable(1)
    served(table, key(0, 0), 0, [1, 2], new_tokens=[3, 4, 5])
    feed = served(table, key(0, 1), 2, [3, 8])
    assert (feed.start, feed.tokens) == (3, (8,))
    assert table.held_tokens("a") == (1, 2, 3, 8)


def test_the_last_token_is_fed_even_if_it_is_held():
    table = SessionTable(1)
    served(table, key(0, 0), 0, [1, 2], new_tokens=[3, 4])
    feed = served(table, key(0, 1), 1, [2, 3])
    assert (feed.start, feed.tokens) == (2, (3,))
    assert table.held_tokens("a") == (1, 2, 3)


def test_no_more_than_was_said_is_kept_unfed():
    table = SessionTable(1)
    served(table, key(0, 0), 0, [1, 2, 3, 4])
    answer = table.admit(key(1, 0), 0, [1, 2, 3, 4, 5], now=0.0, most_kept=1)
    assert answer == Feed(slot=0, start=1, tokens=(2, 3, 4, 5))
    answer = table.admit(key(1, 1), 2, [3, 9], now=0.0, most_kept=5)
    assert answer == Feed(slot=0, start=3, tokens=(9,))
    assert table.held_tokens("a", 3) == (1, 2, 3)


def test_a_repeated_call_returns_the_stored_reply():
    table = SessionTable(1)
    served(table, key(0, 3), 0, [1, 2], new_tokens=[7], result="first")
    assert table.admit(key(0, 3), 0, [1, 2], now=0.0) == Repeat("first")
    assert table.held_tokens("a") == (1, 2, 7)


@pytest.mark.parametrize("old", [(1, 2), (0, 9)])
def test_an_old_round_or_epoch_is_stale_and_changes_nothing(old):
    table = SessionTable(1)
    served(table, key(1, 3), 0, [1, 2])
    answer = table.admit(key(*old), 0, [9], now=0.0)
    assert (answer.status, answer.kv_length) == (EntryStatus.STALE, 2)
    assert table.held_tokens("a") == (1, 2)


def test_a_worker_that_lacks_tokens_says_how_many_it_has():
    table = SessionTable(1)
    served(table, key(0, 0), 0, [1, 2])
    assert table.admit(key(0, 1), 3, [4], now=0.0) == Refusal(EntryStatus.LACKS_TOKENS, 2)
    feed = served(table, key(0, 2), 2, [3, 4])
    assert (feed.start, feed.tokens) == (2, (3, 4))


def test_an_unknown_sequence_lacks_everything_and_takes_no_slot():
    table = SessionTable(1)
    assert table.admit(key(), 3, [4], now=0.0) == Refusal(EntryStatus.LACKS_TOKENS, 0)
    assert (len(table), table.num_free_slots) == (0, 1)


def test_a_new_epoch_trusts_only_a_whole_log():
    table = SessionTable(1)
    served(table, key(0, 5), 0, [1, 2])
    assert table.admit(key(1, 0), 2, [3], now=0.0) == Refusal(EntryStatus.LACKS_TOKENS, 0)
    feed = served(table, key(1, 1), 0, [1, 2, 3])
    assert (feed.start, feed.tokens) == (0, (1, 2, 3))


def test_a_new_epoch_with_a_whole_log_keeps_what_agrees_and_starts_its_rounds_anew():
    table = SessionTable(1)
    served(table, key(0, 5), 0, [1, 2, 3], result="old")
    feed = served(table, key(1, 0), 0, [1, 2, 9], result="new")
    assert (feed.start, feed.tokens) == (2, (9,))
    assert table.admit(key(1, 0), 0, [1, 2, 9], now=0.0) == Repeat("new")


def test_slots_run_out_and_come_back():
    table = SessionTable(1)
    served(table, key(name="a"), 0, [1])
    assert table.admit(key(name="b"), 0, [1], now=0.0).status is EntryStatus.NO_CAPACITY
    assert table.forget("a") == 0
    assert table.forget("a") is None
    assert table.admit(key(name="b"), 0, [1], now=0.0).slot == 0
    assert table.held_tokens("a") == ()


def test_sessions_that_nobody_uses_expire():
    table = SessionTable(2)
    table.admit(key(name="a"), 0, [1], now=1.0)
    table.admit(key(name="b"), 0, [1], now=5.0)
    assert table.expired(before=5.0) == ("a",)
    assert table.expired(before=0.5) == ()


LOGS = st.lists(st.integers(0, 2), min_size=1, max_size=10)


@given(LOGS, LOGS, st.data())
def test_after_any_entry_exactly_the_log_is_held(old_log, log, data):
    """Whatever was held: refused, or the held tokens become the log and at least one was fed."""
    table = SessionTable(1)
    served(table, key(0, 0), 0, old_log)
    start = data.draw(st.integers(0, len(log) - 1))
    answer = table.admit(key(0, 1), start, log[start:], now=0.0)
    if isinstance(answer, Refusal):
        assert start > len(old_log)
        assert answer.kv_length == len(old_log)
        return
    held = table.held_tokens("a")
    assert held[start:] == tuple(log[start:])
    assert held[:start] == tuple(old_log[:start])
    assert len(answer.tokens) >= 1
    assert answer.tokens == held[answer.start :]


class SessionMachine(RuleBasedStateMachine):
    """One coordinator's log against one worker: the table never holds what was never sent."""

    def __init__(self):
        super().__init__()
        self.table = SessionTable(1)
        self.log = [1]
        self.kv_length = 0
        self.epoch = 0
        self.round_index = 0
        self.repeated = None

    @rule(drafts=st.lists(st.integers(0, 2), max_size=3))
    def serve(self, drafts):
        self.round_index += 1
        entry_key = EntryKey("a", self.epoch, self.round_index)
        start = min(self.kv_length, len(self.log) - 1)
        answer = self.table.admit(entry_key, start, self.log[start:], now=0.0)
        if isinstance(answer, Refusal):
            assert answer.status is EntryStatus.LACKS_TOKENS
            self.kv_length = answer.kv_length
            return
        assert isinstance(answer, Feed)
        assert self.table.held_tokens("a") == tuple(self.log)
        self.table.record(entry_key, drafts, (self.round_index, tuple(drafts)))
        self.kv_length = len(self.log)
        self.repeated = (
            entry_key,
            start,
            tuple(self.log[start:]),
            (self.round_index, tuple(drafts)),
        )

    @precondition(lambda self: self.repeated and len(self.table))
    @rule()
    def repeat(self):
        entry_key, start, tokens, result = self.repeated
        if (entry_key.epoch, entry_key.round_index) == (self.epoch, self.round_index):
            assert self.table.admit(entry_key, start, tokens, now=0.0) == Repeat(result)
        elif entry_key.epoch < self.epoch:
            return
        else:
            self.table.admit(entry_key, start, tokens, now=0.0)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def commit(self, tokens):
        self.log += tokens

    @rule()
    def evict(self):
        self.table.forget("a")
        self.repeated = None

    @rule()
    def restart(self):
        self.epoch += 1
        self.kv_length = 0


TestSessions = SessionMachine.TestCase
