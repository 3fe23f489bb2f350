"""Verifier and drafter over real models: what is drafted never shows in what is generated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
import torch
from drafting import reply_of

from draft_worker.drafter import Drafter
from draft_worker.model_proposer import ModelProposer
from draft_worker.rules import SampleMethod
from exspec.core.choosing import ChoiceRules, Grammar, GrammarKind, TokenLogprobs
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import DraftEntry, EntryKey, EntryStatus, VerifyBatch, VerifyEntry
from exspec.engine.grammars import GrammarCompiler
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner
from target_worker.verifier import Verifier
from tests.engine import grammar_oracle
from tests.engine.tiny import VOCAB_SIZE, tiny_loaded

NUM_TOKENS = 20
PROMPTS = tuple(tuple(range(6 + i, 9 + 4 * i)) for i in range(6))
CHANGES = (
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 2, "num_logprobs": 3, "num_prompt_logprobs": 1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    {"temperature": 1.3, "repetition_penalty": 1.2, "presence_penalty": 0.5, "seed": 4},
    {"temperature": 1.0, "typical_p": 0.9, "bad_words": ((7, 8), (9,)), "logit_bias": ((3, 2.0),)},
    {"min_tokens": 9, "ending_token_ids": (0, 1), "allowed_token_ids": tuple(range(60))},
)
RULES = tuple(
    ChoiceRules(len(prompt), **changes) for prompt, changes in zip(PROMPTS, CHANGES, strict=True)
)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def runner_of(seed: int = 0, layout: KvLayoutName = KvLayoutName.SLOTS, **options) -> ModelRunner:
    """A tiny model; the same seed gives the same one."""
    loaded = tiny_loaded("llama-gqa", seed, **options.pop("model", {}))
    return ModelRunner(loaded, layout=layout, num_slots=6, capacity=96, **options)


@dataclass
class Row:
    """One generation as its coordinator sees it."""

    name: str
    prompt: tuple[int, ...]
    rules: ChoiceRules
    log: tuple[int, ...] = ()
    held: int = 0
    said: tuple[TokenLogprobs, ...] = ()
    of_prompt: tuple[TokenLogprobs, ...] = ()
    rounds: list[tuple[int, int]] = field(default_factory=list)
    """Drafted and accepted."""

    def __post_init__(self) -> None:
        self.log = self.prompt

    @property
    def generated(self) -> tuple[int, ...]:
        return self.log[len(self.prompt) :][:NUM_TOKENS]

    @property
    def brought(self) -> tuple[int, tuple[int, ...], ChoiceRules | None]:
        """Where an entry starts, its tokens, its rules."""
        return self.held, self.log[self.held :], None if self.held else self.rules


class Duo:
    """A target and a draft worker that serve all rows in every round."""

    def __init__(self, target: ModelRunner, drafter: Drafter | None = None) -> None:
        self._verifier = Verifier(target, lambda: 0.0, orphan_seconds=9)
        self._drafter = drafter

    def run(self, rows: list[Row]) -> list[Row]:
        index = 0
        while any(len(row.generated) < NUM_TOKENS for row in rows):
            active = [row for row in rows if len(row.generated) < NUM_TOKENS]
            self._round(active, index)
            index += 1
        return rows

    def _round(self, rows: list[Row], index: int) -> None:
        keys = [EntryKey(SequenceId(row.name), 0, index) for row in rows]
        drafts = self._drafts(rows, keys)
        entries = []
        for row, key, drafted in zip(rows, keys, drafts, strict=True):
            start, tokens, rules = row.brought
            entries.append(VerifyEntry(key, start, tokens, drafted, rules=rules))
        reply = self._verifier.verify(VerifyBatch(BatchId(1), tuple(entries)), 0.0)
        for row, drafted, result in zip(rows, drafts, reply.results, strict=True):
            assert result.status is EntryStatus.OK, result
            row.rounds.append((len(drafted), result.num_accepted))
            row.held = len(row.log)
            row.log = (*row.log, *drafted[: result.num_accepted], result.bonus_token)
            row.said += result.logprobs
            row.of_prompt += result.prompt_logprobs

    def _drafts(self, rows: list[Row], keys: list[EntryKey]) -> list[tuple[int, ...]]:
        if self._drafter is None:
            return [()] * len(rows)
        entries = []
        for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
            start, tokens, rules = row.brought
            entries.append(DraftEntry(key, start, tokens, 1 + (place + key.round_index) % 5, rules))
        results = reply_of(self._drafter, *entries).results
        for _ in range(keys[0].round_index % 4):
            self._drafter.draft_ahead()
        return [result.draft_tokens for result in results]


def drafter_of(
    runner: ModelRunner, method: SampleMethod = SampleMethod.SHARED, num_ahead: int = 0
) -> Drafter:
    proposer = ModelProposer(runner, method)
    return Drafter(proposer, lambda: 0.0, orphan_seconds=9, num_ahead=num_ahead)


def all_rows() -> list[Row]:
    return [Row(str(i), PROMPTS[i], rules) for i, rules in enumerate(RULES)]


@pytest.fixture(scope="module")
def truth() -> list[Row]:
    """Each alone, token by token."""
    return [Duo(runner_of()).run([row])[0] for row in all_rows()]


def check(rows: list[Row], truth: list[Row]) -> None:
    for row, plain in zip(rows, truth, strict=True):
        assert row.generated == plain.generated, row.rules
        for said, expected in ((row.said, plain.said), (row.of_prompt, plain.of_prompt)):
            for one, other in zip(said, expected, strict=False):
                assert (one.token_id, *dict(one.top)) == (other.token_id, *dict(other.top))
                assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
    assert len(rows[1].said) >= NUM_TOKENS
    assert [one.token_id for one in rows[1].said] == list(rows[1].log[len(PROMPTS[1]) :])
    assert [one.token_id for one in rows[1].of_prompt] == list(PROMPTS[1][1:])


@pytest.mark.parametrize("num_ahead", [0, 4])
@pytest.mark.parametrize("layout", list(KvLayoutName), ids=lambda layout: layout.value)
def test_with_shared_noise_the_targets_own_model_drafts_what_the_target_chooses(
    layout, num_ahead, truth
):
    drafter = drafter_of(runner_of(), num_ahead=num_ahead)
    rows = Duo(runner_of(layout=layout), drafter).run(all_rows())
    check(rows, truth)
    for row in rows:
        assert all(accepted == drafted for drafted, accepted in row.rounds), row.rules
        assert sum(drafted for drafted, _ in row.rounds) > NUM_TOKENS // 2
    assert (drafter.ahead.num_proposed > 0) is (num_ahead > 0)


@pytest.mark.parametrize("draft", ["another model", "half a head", "greedy", "none"])
def test_the_draft_decides_nothing(draft, truth):
    drafters = {
        "another model": lambda: drafter_of(runner_of(seed=1), num_ahead=3),
        "half a head": lambda: drafter_of(runner_of(choices_among=range(0, VOCAB_SIZE, 2))),
        "greedy": lambda: drafter_of(runner_of(), SampleMethod.GREEDY),
        "none": lambda: None,
    }
    rows = Duo(runner_of(), drafters[draft]()).run(all_rows())
    check(rows, truth)
    if draft == "greedy":  # the last row is greedy itself
        assert all(accepted == drafted for drafted, accepted in rows[-1].rounds)
        assert any(accepted < drafted for row in rows[:-1] for drafted, accepted in row.rounds)


def test_each_seed_has_its_own_tokens():
    by_seed = [ChoiceRules(3, temperature=1.0, seed=seed) for seed in range(3)]
    rows = [Row(str(i), PROMPTS[0], rules) for i, rules in enumerate(by_seed)]
    assert len({row.generated for row in Duo(runner_of()).run(rows)}) == 3


FORM = r"(\{[0-9]{2}[a-c]{1,2}é?\} ){2}"
"""Places where one token may come and where several may; complete after 18 tokens at most."""
MIXED = {"model": {"vocab_size": grammar_oracle.VOCAB_SIZE}}


def following(**options) -> ModelRunner:
    """A tiny model that can follow grammars."""
    compiler = GrammarCompiler(grammar_oracle.assets(), grammar_oracle.facts())
    return runner_of(**MIXED, **options, open_matcher=compiler.open)


@pytest.mark.parametrize("draft", ["with the grammar", "without llguidance", "another model"])
def test_drafts_that_leave_the_grammar_are_rejected_and_change_nothing(draft):
    """The language holds over blocks of every length, and is the draft's, too, if it can."""
    drafters = {
        "with the grammar": lambda: drafter_of(following(), num_ahead=3),
        "without llguidance": lambda: drafter_of(runner_of(**MIXED), num_ahead=3),
        "another model": lambda: drafter_of(following(seed=1)),
    }
    grammar = Grammar(GrammarKind.REGEX, FORM)
    rules = [ChoiceRules(3, temperature=1.0, seed=seed, grammar=grammar) for seed in range(3)]

    def rows() -> list[Row]:
        return [Row(str(one.seed), PROMPTS[0], one) for one in rules]

    plain = [Duo(following()).run([row])[0] for row in rows()]
    drafted = Duo(following(), drafters[draft]()).run(rows())
    texts = grammar_oracle.token_bytes()
    for row, expected in zip(drafted, plain, strict=True):
        assert row.generated == expected.generated
        text = b"".join(texts.get(token, b"") for token in row.generated).decode()
        assert re.fullmatch(FORM, text), text
    is_always_right = [num == accepted for row in drafted for num, accepted in row.rounds]
    assert all(is_always_right) is (draft == "with the grammar")


def test_a_log_that_left_the_grammar_is_refused_with_the_reason():
    verifier = Verifier(following(), lambda: 0.0, orphan_seconds=9)
    rules = ChoiceRules(3, grammar=Grammar(GrammarKind.REGEX, FORM))
    wrong = next(i for i, text in grammar_oracle.token_bytes().items() if text == b"z")
    keys = [EntryKey(SequenceId(name), 0, 0) for name in ("bad", "good")]
    logs = ((*PROMPTS[0], wrong), PROMPTS[0])
    entries = (VerifyEntry(key, 0, log, rules=rules) for key, log in zip(keys, logs, strict=True))
    bad, good = verifier.verify(VerifyBatch(BatchId(1), tuple(entries)), 0.0).results
    assert (bad.status, good.status) == (EntryStatus.INVALID, EntryStatus.OK)
    assert bad.detail.startswith("structured: the grammar does not allow the generated token 92")
    assert "does not allow" in bad.detail
