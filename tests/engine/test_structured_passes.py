"""Structured output in the model's passes: the same with and without drafts, and always right."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.engine.kv.layout import KvLayoutName
from tests.engine.grammar_oracle import STOP, VOCAB_SIZE, token_bytes
from tests.engine.structured_world import (
    GRAMMARS,
    Row,
    all_rules,
    make_rows,
    plain_outputs,
    run,
    structured_runner,
    text_of,
)

BY_TEXT = {text: token for token, text in token_bytes().items()}


def ids(text: str) -> tuple[int, ...]:
    return tuple(BY_TEXT[bytes([byte])] for byte in text.encode())


def test_texts_that_end_match_their_grammars():
    num_ended = 0
    for rules, new in zip(all_rules(), plain_outputs(), strict=True):
        if rules is not None and rules.grammar is not None and new[-1] == STOP:
            fits = dict(GRAMMARS)[rules.grammar]
            assert fits(text_of(new)), text_of(new)
            num_ended += 1
    assert num_ended == len(GRAMMARS) * 3


def _none(row, k, draw):
    return ()


def _good(row, k, draw):
    return plain_outputs()[row.slot][len(row.new) :][:k]


def _mostly_good(row, k, draw):
    return [t if draw.random() < 0.7 else draw.randrange(VOCAB_SIZE) for t in _good(row, k, draw)]


def _bad(row, k, draw):
    return [draw.randrange(VOCAB_SIZE) for _ in range(k)]


def _look_up(row, k, draw):
    """As the n-gram draft: what followed the last token when it occurred before."""
    before = row.log[:-1]
    if row.log[-1] not in before:
        return ()
    place = len(before) - before[::-1].index(row.log[-1])
    return row.log[place:][:k]


@pytest.mark.parametrize("layout", list(KvLayoutName))
@pytest.mark.parametrize("propose", [_none, _good, _mostly_good, _bad, _look_up])
def test_drafts_of_any_kind_change_nothing(layout, propose):
    """In one batch with rows that have no grammar; workers are lost on the way."""
    draw = random.Random(1)
    runner = structured_runner(layout, len(all_rules()))
    rows = make_rows(all_rules())
    for row in rows:
        row.open(runner)
    while not all(row.is_finished for row in rows):
        if draw.random() < 0.15:  # another worker takes over: it is told the log and the rules
            runner = structured_runner(layout, len(rows))
            for row in rows:
                row.open(runner)
        run(runner, rows, lambda row, k: propose(row, k, draw), draw.randint(0, 6))
    assert [tuple(row.new) for row in rows] == list(plain_outputs())
    if propose in (_good, _mostly_good):
        assert all(row.num_accepted for row in rows)


@pytest.mark.parametrize("place", range(4))
def test_a_draft_the_grammar_does_not_allow_is_where_acceptance_ends(place):
    """Also where the model would choose it if it might."""
    runner = structured_runner(KvLayoutName.SLOTS, len(all_rules()))
    for row in make_rows(all_rules())[:-2]:
        truth = plain_outputs()[row.slot][:6]
        wrong = (BY_TEXT[b"?"], VOCAB_SIZE - 1, STOP)[row.slot % 3]
        if len(truth) <= place or truth[place] == wrong:
            continue
        row.open(runner)
        drafts = (*truth[:place], wrong, *truth[place:])
        (choices,) = runner.forward([row.input(drafts)]).choices
        assert choices[: place + 1] == truth[: place + 1]
        row.commit(drafts, choices)
        assert tuple(row.new) == truth[: place + 1]
        run(runner, [row], lambda row, k: plain_outputs()[row.slot][len(row.new) :][:k], 3)
        assert plain_outputs()[row.slot][: len(row.new)] == tuple(row.new)


AB = Grammar(GrammarKind.REGEX, "ab")
STUCK = {
    "nothing allowed that the grammar wants": (
        ChoiceRules(0, grammar=AB, allowed_token_ids=ids("xyz")), "",
    ),
    "the text is complete before min_tokens": (
        ChoiceRules(0, grammar=AB, min_tokens=5, ending_token_ids=(STOP,)), "ab",
    ),
    "the only letter is banned": (ChoiceRules(0, grammar=AB, banned_token_ids=ids("b")), "a"),
    "its text so far is not what the grammar allows": (ChoiceRules(0, grammar=AB), "ax"),
}  # fmt: skip


@pytest.mark.parametrize("layout", list(KvLayoutName))
def test_rows_without_a_token_left_are_told_apart_and_the_others_go_on(layout):
    cases = list(STUCK.values())
    good = make_rows(all_rules())[:3]
    runner = structured_runner(layout, len(good) + len(cases))
    stuck = [
        Row(len(good) + i, replace(rules, num_prompt_tokens=2), (5, 6), new=list(ids(text)))
        for i, (rules, text) in enumerate(cases)
    ]
    for row in (*good, *stuck):
        row.open(runner)
    output = runner.forward(
        [*(row.input(plain_outputs()[row.slot][:3]) for row in good), *(r.input(()) for r in stuck)]
    )
    assert output.stuck_rows == frozenset(range(len(good), len(good) + len(cases)))
    assert not output.failed_rows
    for row, choices in zip(good, output.choices, strict=False):
        assert choices == plain_outputs()[row.slot][:4]
    problems = [row.choosing.problem for row in stuck]
    assert problems[:3] == [""] * 3
    assert "does not allow" in problems[3]


def test_a_later_place_without_a_token_ends_the_block_and_no_more():
    runner = structured_runner(KvLayoutName.SLOTS, 1)
    row = Row(0, ChoiceRules(1, grammar=AB, banned_token_ids=ids("b")), (5,))
    row.open(runner)
    drafts = ids("ab")
    output = runner.forward([row.input(drafts)])
    assert output.choices == ((drafts[0],),)
    assert not output.stuck_rows
