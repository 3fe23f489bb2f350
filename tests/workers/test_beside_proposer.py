"""Look-up beside a model: who proposes what, how little is fed, and that nothing is fed wrongly."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from drafting import POISONS, PROMPT, Poisoned, Row, ask, reply_of, result_of
from hypothesis import given
from hypothesis import strategies as st
from toy import ToyRunner, continuation, draft_language, noise_language, target_language

from draft_worker import beside_proposer
from draft_worker.beside_proposer import BesideProposer
from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.rules import SampleMethod
from exspec.core.choosing import ChoiceRules
from exspec.core.proposal_records import ProposalRecord
from exspec.core.rounds import EntryStatus

REPEATING = (*range(20, 40), 50, *range(20, 40))
"""Its last tokens occurred before, many of them."""


def beside(runner: ToyRunner, least_chance: float = 0.0, num_right: int = 0) -> Drafter:
    """The model was right so often before."""
    proposer = BesideProposer(
        ModelProposer(runner), longest=4, shortest=1, least_chance=least_chance
    )
    for _ in range(num_right):
        ProposalRecord(proposer._pool).note_model(None, is_right=True)
    return Drafter(proposer, lambda: 0.0, orphan_seconds=9)


def alone(runner: ToyRunner) -> Drafter:
    return Drafter(ModelProposer(runner), lambda: 0.0, orphan_seconds=9)


def test_a_long_match_is_proposed_without_a_pass():
    runner = ToyRunner(draft_language)
    result = result_of(beside(runner), ask(REPEATING, 5))
    assert result.draft_tokens == (50, 20, 21, 22, 23)
    assert (result.num_looked_up, result.kv_length) == (5, len(REPEATING))
    assert not runner.passes


def test_where_nothing_occurred_before_the_model_proposes():
    runner = ToyRunner(draft_language)
    result = result_of(beside(runner), ask((31, 32, 33), 3))
    assert result.draft_tokens == continuation((31, 32, 33), 3, draft_language)
    assert result.num_looked_up == 0
    assert runner.num_fed == [3, 1, 1]


def test_a_model_that_was_left_out_is_fed_what_it_lacks():
    runner = ToyRunner(draft_language)
    drafter = beside(runner)
    result_of(drafter, ask(REPEATING, 5))
    log = (*REPEATING, 50, 20, 11)  # 11 never occurred: the model's turn
    result = result_of(drafter, ask(log, 2, start=len(REPEATING), round_index=2))
    assert result.draft_tokens == continuation(log, 2, draft_language)
    assert runner.num_fed == [len(log), 1]
    assert not runner.violations


def test_a_feed_catches_up_too():
    runner = ToyRunner(draft_language)
    drafter = beside(runner)
    result_of(drafter, ask(REPEATING, 5))
    result = result_of(drafter, ask((*REPEATING, 50), 0, start=len(REPEATING), round_index=2))
    assert (result.draft_tokens, result.num_looked_up) == ((), 0)
    assert runner.num_fed == [len(REPEATING) + 1]


def test_a_row_that_lacks_a_lot_is_fed_beside_its_look_up(monkeypatch):
    monkeypatch.setattr(beside_proposer, "MOST_LACKING", len(REPEATING))
    runner = ToyRunner(draft_language)
    drafter = beside(runner)
    assert result_of(drafter, ask(REPEATING, 3)).num_looked_up == 3
    assert runner.num_fed == [len(REPEATING)]
    log = (*REPEATING, 50)
    result = result_of(drafter, ask(log, 3, start=len(REPEATING), round_index=2))
    assert (result.num_looked_up, len(runner.passes)) == (3, 1)


def test_a_tail_is_looked_up_once_the_text_begins_to_repeat():
    """The model leads on to a passage that occurred before; that is known without more passes."""
    script = {60: 61, 61: 20, 20: 21}
    runner = ToyRunner(lambda context: script.get(context[-1], 5))
    result = result_of(beside(runner), ask((*range(20, 40), 60), 6))
    assert result.draft_tokens == (61, 20, 21, 22, 23, 24)
    assert (result.num_looked_up, len(runner.passes)) == (3, 3)
    assert not runner.violations


def _follow(drafter: Drafter, truth: tuple[int, ...], start: int, num_drafts: int) -> list[int]:
    """Rounds whose target goes on as `truth` does: what each of them accepted."""
    log, believed, accepted = truth[:start], 0, []
    while len(log) + num_drafts < len(truth):
        entry = ask(log, num_drafts, start=believed, round_index=len(accepted) + 1)
        believed = len(log)
        drafts = result_of(drafter, entry).draft_tokens
        right = [a == b for a, b in zip(drafts, truth[len(log) :], strict=False)]
        accepted.append((*right, False).index(False))
        log = truth[: len(log) + accepted[-1] + 1]
    return accepted


def test_a_good_model_is_preferred_to_weak_matches_and_a_bad_one_is_not():
    """Every token occurred before, but what followed it is hardly ever what follows now."""
    truth = continuation(PROMPT, 150, lambda context: 5 + target_language(context) % 12)

    def share_of_passes(language) -> float:
        runners = ToyRunner(language), ToyRunner(language)
        _follow(beside(runners[0]), truth, 20, 4)
        _follow(alone(runners[1]), truth, 20, 4)
        assert not runners[0].violations
        return len(runners[0].passes) / len(runners[1].passes)

    assert share_of_passes(lambda context: truth[len(context) % len(truth)]) > 0.8
    assert share_of_passes(noise_language) < 0.4


def test_a_model_that_was_bad_and_is_good_now_is_found_out():
    """Though whatever it would follow occurred before, and is looked up, rarely with success."""
    draw = Random(1)
    truth = tuple(5 + draw.randrange(12) for _ in range(1400))
    runner = ToyRunner(
        lambda log: truth[len(log)] if 500 < len(log) < len(truth) else 4, capacity=1500
    )
    runner.sureness = lambda context: 0.9
    accepted = _follow(beside(runner), truth, 100, 4)
    assert sum(accepted[-40:]) > 3.5 * 40


def test_a_repeated_text_is_accepted_longer_than_the_model_alone_gets():
    passage = continuation(PROMPT, 60)
    truth = (*passage, *passage, *passage)
    drafters = (beside(ToyRunner(draft_language)), alone(ToyRunner(draft_language)))
    both, model = (_follow(drafter, truth, 60, 5) for drafter in drafters)
    assert sum(both) / len(both) > 4 > sum(model) / len(model)


def _happens(drafter: Drafter, row: Row, happening: str) -> None:
    """Before an entry: the row begins anew, or its worker is told to forget it."""
    if happening == "epoch":
        row.epoch, row.believed = row.epoch + 1, 0
    elif happening == "release":
        reply_of(drafter, released=[row.name])
        row.believed = 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 6),
            st.integers(0, 6),
            st.booleans(),
            st.sampled_from(["", "", "", "epoch", "release", "again"]),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_whatever_happens_the_slots_hold_what_the_proposals_were_made_from(rounds, fails):
    """The model's part is always its own continuation; rows, epochs and failures do not mix."""
    runner = (Poisoned if fails else ToyRunner)(draft_language)
    drafter = beside(runner)
    rows = {name: Row(name, (*PROMPT, 7 + ord(name) % 5)) for name in "ab"}
    for name, num_drafts, num_accepted, is_guessed, happening in rounds:
        row = rows[name]
        _happens(drafter, row, happening)
        item = row.entry(num_drafts)
        result = result_of(drafter, item)
        if happening == "again" and result.status is EntryStatus.OK:
            assert result_of(drafter, item) == result
        row.note(result)
        tokens = result.draft_tokens
        own = tokens[: len(tokens) - result.num_looked_up]
        assert own == continuation(row.log, len(own), draft_language)
        assert fails or not num_drafts or len(tokens) == num_drafts
        assert fails or not runner.violations
        if len(row.log) < 150:
            row.commit(num_accepted, is_guessed=is_guessed)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 6),
            st.integers(0, 6),
            st.sampled_from(["", "epoch", "release"]),
        ),
        min_size=8,
        max_size=25,
    ),
    st.sampled_from([0.0, 0.3]),
)
def test_a_model_that_is_overruled_holds_what_was_proposed(rounds, least_chance):
    """It is hardly ever sure, and the text is of few tokens, so that much occurred before."""
    truth = continuation(PROMPT, 300, lambda context: 5 + target_language(context) % 4)
    runner = ToyRunner(lambda context: 5 + draft_language(context) % 4, num_slots=2, capacity=400)
    runner.sureness = lambda context: len(context) % 5 / 8
    proposer = BesideProposer(
        ModelProposer(runner), longest=4, shortest=1, least_chance=least_chance
    )
    for _ in range(200):
        ProposalRecord(proposer._pool).note_model(None, is_right=True)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=9)
    rows = {name: Row(name, (7 + ord(name) % 5, *PROMPT, *truth[:20])) for name in "ab"}
    for name, num_drafts, num_accepted, happening in rounds:
        row = rows[name]
        _happens(drafter, row, happening)
        result = result_of(drafter, row.entry(num_drafts))
        row.note(result)
        known = [*row.log, *result.draft_tokens]
        (own,) = (
            slot for slot, lane in proposer._lanes.items() if lane.index.tokens == list(row.log)
        )
        num_fed = proposer._lanes[own].num_fed
        assert runner._slots[own][:num_fed] == known[:num_fed]
        assert not runner.violations
        if len(row.log) < 350:
            row.commit(num_accepted, is_guessed=True)


def test_rows_of_one_batch_go_their_own_ways():
    runner = ToyRunner(draft_language)
    drafter = beside(runner)
    fresh = (31, 32, 33)
    reply = reply_of(
        drafter,
        ask(REPEATING, 4, name="repeats"),
        ask(fresh, 2, name="fresh"),
        ask(PROMPT, 0, name="fed"),
    )
    repeats, other, fed = reply.results
    assert (repeats.draft_tokens, repeats.num_looked_up) == ((50, 20, 21, 22), 4)
    assert (other.draft_tokens, other.num_looked_up) == (continuation(fresh, 2, draft_language), 0)
    assert (fed.status, fed.draft_tokens) == (EntryStatus.OK, ())
    assert [[row.slot for row in rows] for rows in runner.passes] == [[1, 2], [1]]


def test_a_row_the_model_fails_on_takes_no_other_with_it():
    runner = Poisoned(draft_language)
    drafter = beside(runner)
    bad = (31, 32, min(POISONS))
    reply = reply_of(drafter, ask(bad, 2, name="bad"), ask(REPEATING, 2, name="good"))
    assert [one.status for one in reply.results] == [EntryStatus.FAILED, EntryStatus.OK]
    assert reply.results[1].num_looked_up == 2


def test_rules_are_the_models_and_look_ups_follow_none():
    runner = ToyRunner(draft_language)
    rules = ChoiceRules(5, temperature=0.7)
    row = Row("s", REPEATING, rules=rules)
    result = result_of(beside(runner), row.entry(3))
    assert runner.opened == [rules]
    assert result.draft_tokens == (50, 20, 21)


@pytest.mark.parametrize(
    ("flags", "is_beside"),
    [
        ([], True),
        (["--lookup", "off"], False),
        (["--draft-ahead", "2"], False),
    ],
)
def test_it_is_on_unless_drafts_are_made_ahead_or_it_is_turned_off(monkeypatch, flags, is_beside):
    from draft_worker.__main__ import DraftRole
    from draft_worker.settings import DraftSettings
    from exspec.core.ids import Role
    from exspec.engine import worker_model
    from exspec.runtime.settings import load_settings
    from exspec.wire.worker_process import Identity

    monkeypatch.setattr(
        worker_model, "load_worker_model", lambda *_: (None, ToyRunner(draft_language))
    )
    role = DraftRole(load_settings(DraftSettings, flags), Identity(Role.DRAFT, "d"))
    assert isinstance(role._proposer(), BesideProposer) is is_beside


def _unsure_model(truth: tuple[int, ...], is_wrong) -> ToyRunner:
    """Knows the truth, but at places that `is_wrong` tells from what is known so far."""
    return ToyRunner(lambda context: 5 if is_wrong(len(context)) else truth[len(context)])


LONG = tuple(Random(4).choices(range(10, 90), k=220))
"""No four tokens of it occur twice."""


def _num_passes_and_accepted(runner: ToyRunner, least_chance: float) -> tuple[int, int]:
    proposer = BesideProposer(
        ModelProposer(runner), longest=4, shortest=4, least_chance=least_chance
    )
    accepted = _follow(Drafter(proposer, lambda: 0.0, orphan_seconds=9), LONG, 20, 9)
    assert not runner.violations
    return len(runner.passes), sum(accepted)


def test_a_proposal_ends_where_the_model_is_unsure_and_was_wrong_before():
    def is_wrong(place: int) -> bool:
        return place % 3 == 0

    counts = {}
    for least_chance in (0.0, 0.2):
        runner = _unsure_model(LONG, is_wrong)
        runner.sureness = lambda context: 0.15 if is_wrong(len(context)) else 0.95
        counts[least_chance] = _num_passes_and_accepted(runner, least_chance)
    assert counts[0.2][1] == counts[0.0][1]  # what it left out would not have been accepted
    assert counts[0.2][0] < 0.75 * counts[0.0][0]


def test_a_model_that_is_right_without_being_sure_is_let_go_on():
    counts = {}
    for least_chance in (0.0, 0.2):
        runner = _unsure_model(LONG, lambda place: False)
        runner.sureness = lambda context: 0.02
        counts[least_chance] = _num_passes_and_accepted(runner, least_chance)
    passes, accepted = counts[0.2]
    assert accepted > 0.9 * counts[0.0][1]
    assert passes <= counts[0.0][0]


@pytest.mark.parametrize("method", SampleMethod)
def test_a_row_with_rules_is_not_asked_how_sure_the_model_is(method):
    runner = ToyRunner(draft_language)
    model = ModelProposer(runner, method)
    proposer = BesideProposer(model, longest=4, shortest=1, least_chance=0.9)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=9)
    entry = replace(ask((31, 32, 33), 4), rules=ChoiceRules(3, temperature=1.0, seed=3))
    assert len(result_of(drafter, entry).draft_tokens) == 4
    assert not any(row.wants_chance for rows in runner.passes for row in rows)


def test_without_copies_the_model_proposes_what_it_chose():
    runner = ToyRunner(draft_language)
    log = (31, 32, 33)
    assert result_of(beside(runner), ask(log, 4)).draft_tokens == continuation(
        log, 4, draft_language
    )


def test_the_model_is_asked_about_what_followed_before_and_may_be_overruled():
    """It is unsure; the last two tokens were followed by 7 before, and by 9 the last one alone."""
    runner = ToyRunner(lambda context: 60)
    runner.sureness = lambda context: 0.1
    log = (1, 2, 7, 3, 2, 9, 50, 51, 1, 2)
    result = result_of(beside(runner, num_right=400), ask(log, 2))
    assert runner.passes[0][0].rivals == (7, 9)
    assert result.draft_tokens[0] == 7
    assert [row.tokens for rows in runner.passes for row in rows] == [log, (7,)]


def test_a_sure_model_is_not_overruled():
    runner = ToyRunner(lambda context: 60)
    runner.sureness = lambda context: 0.99
    log = (1, 2, 7, 3, 2, 9, 50, 51, 1, 2)
    assert result_of(beside(runner, num_right=400), ask(log, 1)).draft_tokens == (60,)


def test_a_model_that_does_not_say_proposes_what_it_chose():
    runner = ToyRunner(lambda context: 60)
    runner._chances = lambda row: ()
    log = (1, 2, 7, 3, 2, 9, 50, 51, 1, 2)
    assert result_of(beside(runner, num_right=400), ask(log, 1)).draft_tokens == (60,)


def test_a_tail_is_not_looked_up_behind_tokens_that_are_in_vain():
    """The text would repeat itself behind the model's token, which is hardly ever right."""
    runner = ToyRunner(lambda context: 31)
    runner.sureness = lambda context: 0.05
    proposer = BesideProposer(ModelProposer(runner), longest=4, shortest=1, least_chance=0.2)
    pool = proposer._pool
    for _ in range(400):
        ProposalRecord(pool).note_model(0.05, is_right=False)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=9)
    log = (10, 11, 12, *range(30, 40), 50, 51, 30, 77, 78, 79, 80, 52, 53)
    assert result_of(drafter, ask(log, 8)).draft_tokens == (31,)
