"""Any course of events: a drafter that drafts ahead answers as one without, token for token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from drafting import PROMPT, Poisoned, Row, ask, make_drafter, reply_of, result_of
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyRunner, continuation, draft_language

from exspec.core.choosing import ChoiceRules
from exspec.core.ids import SequenceId
from exspec.core.rounds import DraftEntry, EntryStatus
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner
from tests.engine.tiny import tiny_loaded

RULES = (
    None,
    ChoiceRules(2, temperature=1.0, seed=3, presence_penalty=0.5),
    ChoiceRules(2, banned_token_ids=tuple(range(5, 60, 2)), temperature=0.0),
)


@dataclass
class Pair:
    """A drafter that drafts ahead and one that does not, told the same."""

    num_ahead: int
    capacity: int
    is_poisoned: bool
    rows: list[Row] = field(init=False)

    def __post_init__(self) -> None:
        kind = Poisoned if self.is_poisoned else ToyRunner
        self.runners = [kind(draft_language, num_slots=2, capacity=self.capacity) for _ in range(2)]
        self.ahead = make_drafter(self.runners[0], self.num_ahead)
        self.plain = make_drafter(self.runners[1])
        self.rows = [Row(str(i), PROMPT[i:], rules=RULES[i]) for i in range(3)]

    def tell(self, *entries: DraftEntry, released=()) -> None:
        replies = [reply_of(d, *entries, released=released) for d in (self.ahead, self.plain)]
        assert replies[0].results == replies[1].results
        assert not any(runner.violations for runner in self.runners)
        for result in replies[0].results:
            self.rows[int(result.key.sequence_id)].note(result)

    # What may happen; `EVENTS` names these.

    def draft(self, indices: list[int], num_draft_tokens: int) -> None:
        self.tell(*(self.rows[i].entry(num_draft_tokens) for i in indices))

    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.ahead.draft_ahead()

    def commit(self, i: int, num_accepted: int, is_guessed: bool) -> None:
        self.rows[i].commit(num_accepted, is_guessed=is_guessed)

    def likely_round(self, i: int, num_draft_tokens: int, num_steps: int) -> None:
        """All were accepted and the bonus token was as guessed."""
        self.rows[i].commit(9, is_guessed=True)
        self.draft([i], num_draft_tokens)
        self.step(num_steps)

    def repeat(self, i: int) -> None:
        if (last := self.rows[i].last) is not None:
            self.tell(last)

    def ask_late(self, i: int) -> None:
        """An entry of a round that is long over."""
        if (last := self.rows[i].last) is not None:
            believed = self.rows[i].believed
            self.tell(replace(last, key=replace(last.key, round_index=0)))
            self.rows[i].believed = believed

    def skip(self, i: int, num_tokens: int) -> None:
        """The next entry starts beyond what was answered."""
        self.rows[i].believed += num_tokens

    def move(self, i: int, is_whole: bool) -> None:
        """A new epoch, which should come with the whole log."""
        row = self.rows[i]
        if is_whole:
            row.rules = RULES[(i + row.epoch + 1) % len(RULES)]
        row.epoch, row.round_index = row.epoch + 1, 0
        row.believed = 0 if is_whole else row.believed

    def release(self, i: int, is_known: bool) -> None:
        self.tell(released=[SequenceId(str(i))])
        self.rows[i].believed = 0 if is_known else self.rows[i].believed

    def renew(self, i: int) -> None:
        """Another sequence takes the name."""
        self.tell(released=[SequenceId(str(i))])
        self.rows[i] = Row(str(i), PROMPT[: i + 1])

    def fail(self, i: int) -> None:
        """A pass fails for an entry that needs one, drafted ahead or not."""
        self.tell(released=[SequenceId(str(i))])
        for runner in self.runners:
            runner.failures.append(ValueError("x"))
        self.draft([i], 2)
        for runner in self.runners:
            runner.failures.clear()


ROW = st.integers(0, 2)
EVENTS = st.one_of(
    st.tuples(st.just("draft"), st.lists(ROW, min_size=1, unique=True), st.integers(1, 5)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("commit"), ROW, st.integers(0, 5), st.booleans()),
    st.tuples(st.just("likely_round"), ROW, st.integers(1, 5), st.integers(0, 9)),
    st.tuples(st.just("repeat"), ROW),
    st.tuples(st.just("ask_late"), ROW),
    st.tuples(st.just("skip"), ROW, st.integers(1, 6)),
    st.tuples(st.just("move"), ROW, st.booleans()),
    st.tuples(st.just("release"), ROW, st.booleans()),
    st.tuples(st.just("renew"), ROW),
    st.tuples(st.just("fail"), ROW),
)


@settings(deadline=None)
@given(
    num_ahead=st.integers(1, 6),
    capacity=st.sampled_from([12, 24, 256]),
    is_poisoned=st.booleans(),
    events=st.lists(EVENTS, min_size=1, max_size=30),
)
def test_whatever_happens_the_answers_are_those_of_a_drafter_without(
    num_ahead, capacity, is_poisoned, events
):
    pair = Pair(num_ahead, capacity, is_poisoned)
    for name, *arguments in events:
        getattr(pair, name)(*arguments)
    pair.ahead.forget(SequenceId(row.name) for row in pair.rows)
    totals = pair.ahead.ahead
    assert not totals._leads
    assert 0 <= totals.num_proposed + totals.num_wasted <= totals.num_drafted


@settings(deadline=None)
@given(
    failing=st.lists(st.booleans(), min_size=12, max_size=12),
    rounds=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=12),
)
def test_failing_steps_cost_feeding_again_and_nothing_else(failing, rounds):
    runner = ToyRunner(draft_language)
    drafter, row = make_drafter(runner, num_ahead=3), Row("s", PROMPT)
    for fails, (num_accepted, num_draft_tokens) in zip(failing, rounds, strict=False):
        result = result_of(drafter, row.entry(num_draft_tokens))
        row.note(result)
        if result.status is EntryStatus.LACKS_TOKENS:
            result = result_of(drafter, row.entry(num_draft_tokens))
            row.note(result)
        assert result.status is EntryStatus.OK
        assert result.draft_tokens == continuation(row.log, num_draft_tokens, draft_language)
        drafter.draft_ahead()
        if fails:
            runner.failures.append(ValueError("x"))
        drafter.draft_ahead()
        runner.failures.clear()
        row.commit(num_accepted, is_guessed=True)
    assert not runner.violations


@pytest.mark.parametrize("layout", list(KvLayoutName), ids=lambda layout: layout.value)
def test_with_a_model_the_proposals_are_the_same(layout):
    """Ragged rows of a tiny model; commits of every kind, steps cut short by the next batch."""
    torch.set_num_threads(1)
    loaded = tiny_loaded("llama-gqa")
    drafters = [
        make_drafter(ModelRunner(loaded, layout=layout, num_slots=3, capacity=48), num_ahead)
        for num_ahead in (4, 0)
    ]
    rows = [Row(str(i), tuple(range(6, 9 + 5 * i))) for i in range(3)]
    for round_index in range(9):
        entries = [row.entry(1 + (round_index + i) % 4) for i, row in enumerate(rows)]
        replies = [reply_of(drafter, *entries).results for drafter in drafters]
        assert replies[0] == replies[1]
        for _ in range(round_index % 6):
            drafters[0].draft_ahead()
        for i, (row, result) in enumerate(zip(rows, replies[0], strict=True)):
            row.note(result)
            num_accepted = len(row.proposals) if (round_index + i) % 3 else i
            row.log = (*row.log, *row.proposals[:num_accepted])
            row.log = (*row.log, _choice_of(loaded, row.log) if round_index % 2 else 3)
    assert drafters[0].ahead.num_proposed
    assert drafters[0].ahead.num_wasted


def _choice_of(loaded, log) -> int:
    runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=1, capacity=96)
    return result_of(make_drafter(runner), ask(log, 1)).draft_tokens[0]
