"""Verification of sequences that have rules: by which a token is chosen, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import VOCAB, ToyRunner, continuation, reported

from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import EntryKey, EntryStatus, VerifyBatch, VerifyEntry, VerifyResult
from target_worker.verifier import Verifier

PROMPT = (11, 0, 2, 11, 30)


class Desk:
    """A verifier over a toy model."""

    def __init__(self, **runner: int) -> None:
        self.now = 100.0
        self.runner = ToyRunner(**runner)
        self.verifier = Verifier(self.runner, lambda: self.now, orphan_seconds=10.0)

    def verify(self, *entries: VerifyEntry, released: tuple[str, ...] = ()) -> list[VerifyResult]:
        names = tuple(SequenceId(name) for name in released)
        reply = self.verifier.verify(VerifyBatch(BatchId(1), entries, names), self.now)
        assert not self.runner.violations
        return list(reply.results)

    def one(self, *arguments, **keywords) -> VerifyResult:
        (result,) = self.verify(entry(*arguments, **keywords))
        return result

    @property
    def num_rules(self) -> int:
        return len(self.verifier._rules)


def rules(seed: int = 7, **changes) -> ChoiceRules:
    """Rules of a sequence that samples."""
    values = {"num_prompt_tokens": len(PROMPT), "temperature": 1.0, "seed": seed}
    return ChoiceRules(**(values | changes))


def entry(tokens, drafts=(), rules=None, *, start=0, round_index=1, epoch=0, name="s", **more):
    key = EntryKey(SequenceId(name), epoch, round_index)
    return VerifyEntry(key, start, tuple(tokens), tuple(drafts), rules=rules, **more)


def chosen(log, count: int, by: ChoiceRules | None) -> tuple[int, ...]:
    return continuation(log, count, rules=by)


SOME_RULES = st.one_of(
    st.none(),
    st.builds(
        rules,
        st.integers(0, 3),
        temperature=st.sampled_from([0.0, 0.7]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        banned_token_ids=st.sampled_from([(), tuple(range(5, VOCAB, 3))]),
        num_logprobs=st.sampled_from([None, 0, 2]),
    ),
)
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.booleans(), max_size=4),
        st.sampled_from(["next", "repeat", "lost", "moved"]),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(SOME_RULES, min_size=1, max_size=3), ROUNDS)
def test_any_course_of_rounds_is_plain_decoding_by_the_rules(all_rules, rounds):
    """Every row by its own, whatever was drafted, repeated, forgotten or moved."""
    desk = Desk()
    logs = [list(PROMPT) for _ in all_rules]
    held, epoch, said = [0] * len(logs), 0, [()] * len(logs)
    for round_index, (rights, course) in enumerate(rounds):
        entries = []
        for i, (log, by) in enumerate(zip(logs, all_rules, strict=True)):
            drafts: list[int] = []
            for is_right in rights:
                (choice,) = chosen((*log, *drafts), 1, by)
                drafts.append(choice if is_right else 5 + (choice - 4) % (VOCAB - 5))
            brought = by if held[i] == 0 else None
            keys = {"round_index": round_index, "epoch": epoch, "name": str(i)}
            entries.append(entry(log[held[i] :], drafts, brought, start=held[i], **keys))
        results = desk.verify(*entries)
        if course == "repeat":
            assert desk.verify(*entries) == results
        for i, (item, result) in enumerate(zip(entries, results, strict=True)):
            logs[i] += [*item.draft_tokens[: result.num_accepted], result.bonus_token]
            held[i] = result.kv_length
            said[i] += result.logprobs
        if course in ("lost", "moved"):
            epoch, held = epoch + (course == "moved"), [0] * len(logs)
            desk.verify(released=[str(i) for i in range(len(logs))] if course == "lost" else ())
    for log, by, logprobs in zip(logs, all_rules, said, strict=True):
        generated = tuple(log[len(PROMPT) :])
        assert generated == chosen(PROMPT, len(generated), by)
        wanted = None if by is None else by.num_logprobs
        assert logprobs == (() if wanted is None else reported(PROMPT, generated, wanted))


def test_a_prompt_in_chunks_has_the_rules_of_its_first_chunk():
    desk = Desk()
    by = rules(presence_penalty=0.5)
    desk.one(PROMPT[:2], rules=by, is_prefill=True)
    desk.one(PROMPT[2:4], start=2, round_index=2, is_prefill=True)
    last = desk.one(PROMPT[4:], start=4, round_index=3)
    assert (last.bonus_token,) == chosen(PROMPT, 1, by)
    assert desk.runner.opened == [by]


@pytest.mark.parametrize("other", [None, rules(8)], ids=["none", "others"])
def test_an_entry_from_the_start_on_brings_new_rules_even_if_its_tokens_are_held(other):
    desk = Desk()
    desk.one(PROMPT, rules=rules(7))
    result = desk.one(PROMPT, rules=other, epoch=1)
    assert (result.bonus_token,) == chosen(PROMPT, 1, other)
    assert desk.runner.num_fed == [len(PROMPT), 1]
    log = (*PROMPT, result.bonus_token)
    follow = desk.one(log[-1:], start=len(PROMPT), epoch=1, round_index=2)
    assert (follow.bonus_token,) == chosen(log, 1, other)


def test_rules_are_made_ready_once_in_an_epoch_and_anew_in_the_next():
    desk = Desk()
    for epoch, round_index in ((0, 1), (0, 2), (1, 1)):
        desk.one(PROMPT, rules=rules(), epoch=epoch, round_index=round_index)
    assert len(desk.runner.opened) == 2
    assert desk.runner.passes[0][0].choosing is desk.runner.passes[1][0].choosing


def test_rules_that_change_nothing_are_no_rules():
    desk = Desk()
    desk.one(PROMPT, rules=rules(temperature=0.0))
    assert desk.runner.passes[0][0].choosing is None


@pytest.mark.parametrize("ending", ["released", "orphan", "failed pass", "new rules: none"])
def test_rules_go_with_the_sequence(ending):
    desk = Desk()
    desk.one(PROMPT, rules=rules())
    assert desk.num_rules == 1
    if ending == "released":
        desk.verify(released=("s",))
    elif ending == "orphan":
        desk.now += 11
        desk.verify()
    elif ending == "failed pass":
        desk.runner.failures.append(RuntimeError("x"))
        desk.one((9,), start=len(PROMPT), round_index=2)
    else:
        desk.one(PROMPT, epoch=1)
    assert desk.num_rules == 0


REFUSED = {
    "structured": rules(grammar=Grammar(GrammarKind.REGEX, "a")),
    "banned_token_ids": rules(banned_token_ids=(VOCAB,)),
}


@pytest.mark.parametrize("field", REFUSED)
def test_rules_that_are_refused_make_their_entry_invalid_and_the_batch_goes_on(field):
    desk = Desk()
    bad, good = desk.verify(entry(PROMPT, rules=REFUSED[field]), entry(PROMPT, name="good"))
    assert bad.status is EntryStatus.INVALID
    assert bad.detail.startswith(f"{field}: ")
    assert bad.detail.count(field) == 1
    assert (good.bonus_token,) == chosen(PROMPT, 1, None)
    assert (desk.num_rules, desk.verifier.num_sequences) == (0, 1)


def test_a_bug_in_making_rules_ready_fails_one_entry(monkeypatch, caplog):
    desk = Desk()
    desk.one(PROMPT)
    monkeypatch.setattr(desk.runner, "open_choosing", lambda _: 1 / 0)
    bad, good = desk.verify(
        entry(PROMPT, rules=rules(), epoch=1), entry(PROMPT, name="good", round_index=2)
    )
    assert (bad.status, bad.kv_length) == (EntryStatus.FAILED, 0)
    assert (good.bonus_token,) == chosen(PROMPT, 1, None)
    assert "verify.rules_failed sequence=s" in caplog.text
    assert desk.verifier.num_sequences == 1


def test_where_no_token_is_left_the_entry_is_invalid_and_says_by_what():
    desk = Desk()
    by = rules(
        allowed_token_ids=(9,), ending_token_ids=(9,), min_tokens=1, bad_words=((8, 9),), seed=1
    )
    bad, good = desk.verify(entry(PROMPT, (9,), by), entry(PROMPT, (), rules(2), name="good"))
    assert bad.status is EntryStatus.INVALID
    fields, _, rest = bad.detail.partition(": ")
    assert fields == "allowed_token_ids, bad_words, min_tokens"
    assert f"position {len(PROMPT)}" in rest
    assert (good.bonus_token,) == chosen(PROMPT, 1, rules(2))
    # The same call gets the same answer, and what is held is the log and nothing else.
    assert desk.one(PROMPT, (9,), by) == bad
    assert len(desk.runner.passes) == 1
    log = (*PROMPT, 9)
    again = desk.one(log, rules=rules(3), epoch=1)
    assert (again.bonus_token,) == chosen(log, 1, rules(3))
    assert desk.runner.num_fed[1] == 1


def test_drafts_past_the_place_where_no_token_is_left_are_rejected():
    """9 may come, and nothing may come after it."""
    desk = Desk()
    by = rules(allowed_token_ids=(9,), bad_words=((9, 9),), num_logprobs=1)
    first = desk.one(PROMPT, (9, 9), by)
    assert (first.status, first.num_accepted, first.bonus_token) == (EntryStatus.OK, 0, 9)
    assert first.logprobs == reported(PROMPT, (9,), 1)
    log = (*PROMPT, 9)
    second = desk.one(log[-1:], start=len(PROMPT), round_index=2)
    assert second.status is EntryStatus.INVALID
    assert second.detail.startswith("allowed_token_ids, bad_words: ")


@pytest.mark.parametrize("num_right", range(4))
def test_every_accepted_draft_and_the_bonus_token_has_its_logprobs(num_right):
    desk = Desk()
    by = rules(num_logprobs=2)
    truth = chosen(PROMPT, 4, by)
    drafts = (*truth[:num_right], *(5 + (token - 4) % (VOCAB - 5) for token in truth[num_right:3]))
    result = desk.one(PROMPT, drafts, by)
    assert result.logprobs == reported(PROMPT, truth[: num_right + 1], 2)
    assert desk.one(PROMPT, drafts, by) == result


def scored(results) -> dict[int, object]:
    """Position to logprobs; no position twice."""
    pairs = [
        (result.prompt_start + i, item)
        for result in results
        for i, item in enumerate(result.prompt_logprobs)
    ]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_token_of_a_prompt_but_the_first_has_its_logprobs(size):
    desk = Desk()
    by = rules(num_prompt_logprobs=1)
    truth = dict(enumerate(reported(PROMPT[:1], PROMPT[1:], 1), start=1))
    for epoch in range(2):  # the second time all is held, and scored all the same
        results = []
        for start in range(0, len(PROMPT), size):
            chunk = PROMPT[start : start + size]
            is_last = start + size >= len(PROMPT)
            more = {} if is_last else {"is_prefill": True, "next_token": PROMPT[start + size]}
            keys = {"start": start, "round_index": start, "epoch": epoch}
            results.append(desk.one(chunk, rules=None if start else by, **keys, **more))
        assert scored(results) == truth
        assert (results[-1].bonus_token,) == chosen(PROMPT, 1, by)


def test_what_was_generated_is_not_scored_with_the_prompt():
    desk = Desk()
    by = rules(num_prompt_logprobs=0)
    log = (*PROMPT, *chosen(PROMPT, 4, by))
    result = desk.one(log, chosen(log, 2, by), by)
    assert scored([result]).keys() == set(range(1, len(PROMPT)))
    later = desk.one(log[-1:], start=len(log) - 1, round_index=2)
    assert (later.prompt_start, later.prompt_logprobs) == (0, ())


def test_a_following_token_outside_the_vocabulary_is_invalid():
    result = Desk().one(PROMPT, rules=rules(num_prompt_logprobs=0), next_token=VOCAB)
    assert result.status is EntryStatus.INVALID
