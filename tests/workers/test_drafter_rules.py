"""Drafting by the target's rules: what is proposed then, and what if they cannot be followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drafting import PROMPT, ask, make_drafter, reply_of, result_of
from hypothesis import given
from hypothesis import strategies as st
from toy import VOCAB, ToyRunner, continuation, draft_language, target_language

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.ngram_proposer import NgramProposer
from draft_worker.rules import SampleMethod
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import EntryKey, EntryStatus, VerifyBatch, VerifyEntry
from target_worker.verifier import Verifier

RULES = ChoiceRules(len(PROMPT), temperature=1.0, seed=5, repetition_penalty=1.2)


def by(entry, rules):
    return replace(entry, rules=rules)


def drafted(log, count, rules):
    return continuation(log, count, draft_language, rules)


def test_every_row_is_drafted_by_its_own_rules():
    runner = ToyRunner(draft_language)
    all_rules = [None, RULES, replace(RULES, seed=6), replace(RULES, temperature=0.0)]
    entries = (by(ask(PROMPT, 3, name=str(i)), rules) for i, rules in enumerate(all_rules))
    results = reply_of(make_drafter(runner), *entries).results
    assert [r.draft_tokens for r in results] == [drafted(PROMPT, 3, rules) for rules in all_rules]
    assert not runner.violations


def test_rules_hold_in_later_rounds_and_go_with_the_sequence():
    runner = ToyRunner(draft_language)
    drafter = make_drafter(runner)
    tokens = result_of(drafter, by(ask(PROMPT, 2), RULES)).draft_tokens
    log = (*PROMPT, *tokens, 50)
    later = result_of(drafter, ask(log, 3, start=len(PROMPT), round_index=2))
    assert later.draft_tokens == drafted(log, 3, RULES)
    assert (len(runner.opened), len(drafter._rules)) == (1, 1)
    drafter.forget([SequenceId("s")])
    assert len(drafter._rules) == 0
    again = result_of(drafter, ask(PROMPT, 2))
    assert again.draft_tokens == drafted(PROMPT, 2, None)
    assert not runner.violations


def test_nobody_reads_logprobs_of_drafts():
    runner = ToyRunner(draft_language)
    drafter = make_drafter(runner)
    result_of(drafter, by(ask(PROMPT), replace(RULES, num_logprobs=3, num_prompt_logprobs=3)))
    assert runner.opened == [RULES]
    plain = ChoiceRules(len(PROMPT), num_logprobs=3, num_prompt_logprobs=3)
    result_of(drafter, by(ask(PROMPT, name="plain"), plain))
    assert runner.opened == [RULES]


def test_greedy_drafts_keep_all_rules_but_the_temperature():
    runner = ToyRunner(draft_language)
    proposer = ModelProposer(runner, SampleMethod.GREEDY)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=9)
    banned = drafted(PROMPT, 1, None)
    rules = replace(RULES, banned_token_ids=banned)
    followed = replace(rules, temperature=0.0)
    result = result_of(drafter, by(ask(PROMPT, 3), rules))
    assert result.draft_tokens == drafted(PROMPT, 3, followed)
    assert result.draft_tokens[0] not in banned
    assert runner.opened == [followed]
    sampled = ChoiceRules(len(PROMPT), temperature=1.0, seed=5)
    result_of(drafter, by(ask(PROMPT, name="t"), sampled))
    assert runner.passes[-1][0].choosing is None


GRAMMAR = Grammar(GrammarKind.REGEX, "a+")
FEWER = {
    "unknown ids": (
        replace(
            RULES,
            logit_bias=((7, 1.0), (VOCAB, 2.0)),
            banned_token_ids=(8, VOCAB),
            allowed_token_ids=(*range(5, 60), VOCAB + 1),
            bad_words=((7, VOCAB), (9, 10)),
        ),
        replace(
            RULES,
            logit_bias=((7, 1.0),),
            banned_token_ids=(8,),
            allowed_token_ids=tuple(range(5, 60)),
            bad_words=((9, 10),),
        ),
    ),
    "grammar": (replace(RULES, grammar=GRAMMAR), RULES),
    "both": (replace(RULES, grammar=GRAMMAR, banned_token_ids=(VOCAB,)), RULES),
    "nothing else": (ChoiceRules(len(PROMPT), grammar=GRAMMAR), None),
}


@pytest.mark.parametrize("case", FEWER)
def test_a_draft_follows_the_rules_it_can_and_says_once_which_it_cannot(case, caplog):
    rules, followed = FEWER[case]
    runner = ToyRunner(draft_language)
    drafter = make_drafter(runner)
    results = [result_of(drafter, by(ask(PROMPT, name=name), rules)) for name in "ab"]
    for result in results:
        assert result.status is EntryStatus.OK
        assert result.draft_tokens == drafted(PROMPT, 3, followed)
    fields = [record.getMessage().split()[1] for record in caplog.records]
    assert fields
    assert len(fields) == len(set(fields))


def test_rules_that_break_the_runner_cost_acceptance_only(monkeypatch, caplog):
    runner = ToyRunner(draft_language)
    monkeypatch.setattr(runner, "open_choosing", lambda _: 1 / 0)
    result = result_of(make_drafter(runner), by(ask(PROMPT, 2), RULES))
    assert result.draft_tokens == drafted(PROMPT, 2, None)
    assert "draft.rules_failed" in caplog.text


@pytest.mark.parametrize("num_ahead", [0, 2])
def test_where_no_token_is_left_proposals_end(num_ahead):
    """9 may come, and nothing may come after it."""
    runner = ToyRunner(draft_language)
    drafter = make_drafter(runner, num_ahead)
    rules = replace(RULES, allowed_token_ids=(9,), bad_words=((9, 9),))
    first = result_of(drafter, by(ask(PROMPT, 3), rules))
    assert (first.status, first.draft_tokens) == (EntryStatus.OK, (9,))
    while drafter.draft_ahead():
        pass
    log = (*PROMPT, 9)
    for round_index in (2, 3):
        second = result_of(drafter, ask(log, 3, start=len(PROMPT), round_index=round_index))
        assert (second.status, second.draft_tokens) == (EntryStatus.OK, ())
        assert second.kv_length == len(log)
        while drafter.draft_ahead():
            pass
    assert not runner.violations


def test_the_ngram_draft_looks_up_whatever_the_rules():
    proposer = NgramProposer(num_slots=1, longest=2, shortest=1)
    drafter = Drafter(proposer, lambda: 0.0, orphan_seconds=9)
    result = result_of(drafter, by(ask((7, 8, 9, 7), 2), RULES))
    assert result.draft_tokens == (8, 9)


@given(
    st.integers(0, 9), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from([0, 6])
)
def test_with_the_targets_own_model_every_draft_is_accepted(seed, rounds, num_ahead):
    runners = [ToyRunner(target_language) for _ in range(2)]
    verifier = Verifier(runners[0], lambda: 0.0, orphan_seconds=9)
    drafter = make_drafter(runners[1], num_ahead)
    rules = replace(RULES, seed=seed)
    log, held = PROMPT, 0
    for round_index, num_drafts in enumerate(rounds):
        brought = None if round_index else rules
        asked = ask(log, num_drafts, start=held, round_index=round_index)
        drafts = result_of(drafter, by(asked, brought)).draft_tokens
        while drafter.draft_ahead():
            pass
        key = EntryKey(SequenceId("s"), 0, round_index)
        entry = VerifyEntry(key, held, log[held:], drafts, rules=brought)
        (result,) = verifier.verify(VerifyBatch(BatchId(1), (entry,)), 0.0).results
        assert (len(drafts), result.num_accepted) == (num_drafts, num_drafts)
        held, log = len(log), (*log, *drafts, result.bonus_token)
    assert log[len(PROMPT) :] == continuation(PROMPT, len(log) - len(PROMPT), rules=rules)
    assert not runners[0].violations + runners[1].violations
