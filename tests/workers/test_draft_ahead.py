"""Drafting ahead: how little is left to do when the guess was right, and what it costs when not."""

from __future__ import annotations

from dataclasses import replace

from drafting import POISONS, PROMPT, Poisoned, ask, make_drafter, reply_of, result_of
from toy import ToyRunner, continuation, draft_language, noise_language

from draft_worker.drafter import Drafter
from exspec.core.choosing import ChoiceRules
from exspec.core.ids import SequenceId
from exspec.core.rounds import EntryStatus


def run_ahead(drafter: Drafter) -> None:
    """All the steps there are to do; a drafter that finds no end fails."""
    for _ in range(100):
        if not drafter.draft_ahead():
            return
    raise AssertionError


def _drafted(log, count):
    return continuation(log, count, draft_language)


class Desk:
    """A drafter that drafts ahead over a toy model; counts what each entry fed."""

    def __init__(self, num_ahead: int, **runner) -> None:
        self.runner = runner.pop("kind", ToyRunner)(draft_language, **runner)
        self.drafter = make_drafter(self.runner, num_ahead)

    def draft(self, *arguments, **keywords) -> tuple[int, ...]:
        self.runner.passes.clear()
        result = result_of(self.drafter, ask(*arguments, **keywords))
        assert result.status is EntryStatus.OK, result
        assert not self.runner.violations
        return result.draft_tokens

    @property
    def fed(self) -> list[int]:
        return self.runner.num_fed


def test_a_right_guess_leaves_nothing_to_do():
    desk = Desk(num_ahead=4)
    log = (*PROMPT, *desk.draft(PROMPT))
    run_ahead(desk.drafter)
    assert desk.fed == [len(PROMPT), *[1] * 2, *[1] * 4]
    log = (*log, *_drafted(log, 1))  # all were accepted, and the bonus token is as guessed
    entry = ask(log, 3, start=len(PROMPT), round_index=2)
    desk.runner.passes.clear()
    reply = reply_of(desk.drafter, entry)
    assert reply.results[0].draft_tokens == _drafted(log, 3)
    assert (desk.fed, reply.timings.num_rows, reply.timings.num_tokens) == ([], 0, 0)
    ahead = desk.drafter.ahead
    assert (ahead.num_drafted, ahead.num_proposed, ahead.num_wasted) == (4, 3, 0)


def test_only_what_is_missing_is_computed():
    desk = Desk(num_ahead=3)
    log = (*PROMPT, *desk.draft(PROMPT, 2))
    run_ahead(desk.drafter)
    log = (*log, *_drafted(log, 1))
    assert desk.draft(log, 5, start=len(PROMPT), round_index=2) == _drafted(log, 5)
    assert desk.fed == [1] * 3


def test_what_an_entry_does_not_ask_for_stays_known():
    desk = Desk(num_ahead=6)
    log = (*PROMPT, *desk.draft(PROMPT, 2))
    run_ahead(desk.drafter)
    log = (*log, *_drafted(log, 1))
    for round_index in range(2, 4):
        assert desk.draft(log, 1, round_index=round_index) == _drafted(log, 1)
        assert desk.fed == []
        log = (*log, *_drafted(log, 2))
    assert desk.drafter.ahead.num_proposed == 2
    desk.drafter.forget([SequenceId("s")])
    assert desk.drafter.ahead.num_wasted == 2  # six: two were bonus tokens, two proposals


def test_what_a_refusal_reports_does_not_depend_on_it():
    """The last proposal is held here, and not without: a coordinator may not see a difference."""
    drafters = [make_drafter(ToyRunner(draft_language), num_ahead) for num_ahead in (4, 0)]
    log = (*PROMPT, *_drafted(PROMPT, 3))
    entries = (ask(PROMPT, 2), ask(log, 1, start=len(PROMPT), round_index=2), ask(log))
    for entry in entries:
        result, plain_result = (result_of(drafter, entry) for drafter in drafters)
        assert result == plain_result
        run_ahead(drafters[0])
    assert (result.status, result.kv_length) == (EntryStatus.STALE, len(log))


def test_a_wrong_guess_costs_nothing_but_the_steps():
    desk = Desk(num_ahead=4)
    proposals = desk.draft(PROMPT, 3)
    run_ahead(desk.drafter)
    log = (*PROMPT, *proposals, *continuation((*PROMPT, *proposals), 1, noise_language))
    log = (*log[:-1], 96 if log[-1] != 96 else 95)
    assert desk.draft(log, 3, start=len(PROMPT), round_index=2) == _drafted(log, 3)
    assert desk.fed == [1] * 3  # the last proposal was fed ahead, which would have to be fed now
    assert desk.drafter.ahead.num_wasted == 4


def test_a_rejection_feeds_the_targets_own_token_only():
    desk = Desk(num_ahead=4)
    proposals = desk.draft(PROMPT, 3)
    run_ahead(desk.drafter)
    log = (*PROMPT, proposals[0], 96 if proposals[1] != 96 else 95)
    assert desk.draft(log, 3, start=len(PROMPT), round_index=2) == _drafted(log, 3)
    assert desk.fed == [1] * 3


def test_rounds_without_drafts_that_agree_use_what_was_proposed_before():
    desk = Desk(num_ahead=1)
    proposals = desk.draft(PROMPT, 3)
    log = (*PROMPT, proposals[0])
    assert desk.draft(log, 2, start=len(PROMPT), round_index=3) == proposals[1:]
    assert desk.fed == []
    assert desk.drafter.ahead.num_proposed == 0


def test_it_ends_where_it_was_told_and_at_the_end_of_the_context():
    for capacity, num_steps in ((64, 5), (len(PROMPT) + 3, 1), (len(PROMPT) + 2, 0)):
        desk = Desk(num_ahead=5, capacity=capacity)
        assert not desk.drafter.draft_ahead()
        desk.draft(PROMPT, 3)
        desk.runner.passes.clear()
        run_ahead(desk.drafter)
        assert desk.fed == [1] * num_steps
        assert not desk.drafter.draft_ahead()
        assert not desk.runner.violations


def test_a_step_goes_on_for_all_rows_in_one_pass():
    desk = Desk(num_ahead=2)
    reply_of(desk.drafter, *(ask(PROMPT[i:], i + 1, name=str(i)) for i in range(3)))
    desk.runner.passes.clear()
    run_ahead(desk.drafter)
    assert desk.fed == [3, 3]


def test_what_other_rules_drafted_ahead_is_not_proposed():
    """The log is as it was guessed, but the sequence came back with another seed."""
    desk = Desk(num_ahead=4)
    for epoch, seed in enumerate((1, 2, 2)):
        rules = ChoiceRules(len(PROMPT), temperature=1.0, seed=seed)
        entry = replace(ask(PROMPT, 3, epoch=epoch), rules=rules)
        desk.runner.passes.clear()
        result = result_of(desk.drafter, entry)
        assert result.draft_tokens == continuation(PROMPT, 3, draft_language, rules)
        assert len(desk.fed) == (3, 3, 0)[epoch]
        run_ahead(desk.drafter)
        log = (*PROMPT, *continuation(PROMPT, 4, draft_language, rules))
        later = ask(log, 2, start=len(PROMPT), round_index=2, epoch=epoch)
        proposals = result_of(desk.drafter, later).draft_tokens
        assert proposals == continuation(log, 2, draft_language, rules)
    assert not desk.runner.violations


def test_what_is_released_is_not_drafted_for():
    desk = Desk(num_ahead=2, num_slots=1)
    desk.draft(PROMPT, 2)
    assert desk.drafter.draft_ahead()
    desk.drafter.forget([SequenceId("s")])
    assert not desk.drafter.draft_ahead()
    assert desk.drafter.ahead.num_wasted == 1
    assert desk.draft((7, 8), 2, name="next") == _drafted((7, 8), 2)


def test_a_failed_step_fails_no_entry(caplog):
    desk = Desk(num_ahead=2)
    log = (*PROMPT, *desk.draft(PROMPT, 2))
    desk.runner.failures.append(ValueError("x"))
    assert not desk.drafter.draft_ahead()
    assert "draft.ahead_failed rows=1" in caplog.text
    log = (*log, *_drafted(log, 1))
    lacking = result_of(desk.drafter, ask(log, 2, start=len(PROMPT), round_index=2))
    assert (lacking.status, lacking.kv_length) == (EntryStatus.LACKS_TOKENS, 0)
    assert desk.draft(log, 2, round_index=3) == _drafted(log, 2)


def test_a_step_without_finite_numbers_only_ends_the_row():
    """The language says 13 at length 8, which cannot be fed: nor ahead, nor for an entry."""
    poison = min(POISONS)
    runner = Poisoned(lambda context: poison if len(context) == 8 else 7)
    drafter = make_drafter(runner, num_ahead=4)
    plain = make_drafter(Poisoned(runner._language))
    for tokens, round_index in ((PROMPT, 1), ((*PROMPT, 7), 2), ((*PROMPT, 7, 7, 7), 3)):
        entry = ask(tokens, 2, round_index=round_index)
        result = result_of(drafter, entry)
        assert result == result_of(plain, entry)
        run_ahead(drafter)
    assert result.draft_tokens == (poison,)
    entry = ask((*PROMPT, 7, 7, 7, poison), 2, round_index=4)
    assert result_of(drafter, entry) == result_of(plain, entry)


def test_without_it_nothing_is_kept_and_nothing_done():
    desk = Desk(num_ahead=0)
    desk.draft(PROMPT, 3)
    assert not desk.drafter.draft_ahead()
    assert not desk.drafter.ahead._leads
