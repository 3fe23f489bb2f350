"""Numbers that overflow stay where they are: other rows, other requests and earlier choices."""

from __future__ import annotations

import pytest
import torch

from exspec.core.errors import ProtocolError
from exspec.core.rounds import EntryKey, EntryStatus, VerifyBatch, VerifyEntry
from exspec.engine.kv.store import KvStore
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from target_worker.verifier import Verifier
from tests.engine.conftest import loaded_family, make_prompts
from tests.engine.tiny import tiny_model

POISON = 50
"""The one token whose embedding is not finite."""

PROMPT = (3, 4, 5)
LONG = tuple(range(6, 46))


@pytest.fixture(params=["nan", "inf"])
def poisoned(request):
    model = tiny_model("llama-gqa")
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = float(request.param)
    return wrap_model(model, ModelSettings("poisoned"))


def make_runner(loaded, layout, num_slots=2, capacity=128):
    return ModelRunner(loaded, layout=layout, num_slots=num_slots, capacity=capacity)


def is_all_finite(runner):
    store = runner._layout.store
    return bool(store._keys.isfinite().all() and store._values.isfinite().all())


def test_a_rejected_draft_changes_nothing(poisoned, layout):
    """Neither in its own pass nor in a later one that masks its column."""

    def choices(drafts):
        runner = make_runner(poisoned, layout)
        runner.forward([RowInput(0, 0, PROMPT, 1), RowInput(1, 0, LONG, 1)])
        block = RowInput(0, 3, (9, *drafts), len(drafts) + 1)
        first = runner.forward([block, RowInput(1, 40, (8,), 1)]).choices
        second = runner.forward([RowInput(0, 4, (7,), 1), RowInput(1, 41, (8,), 1)]).choices
        return first[0][0], first[1], second

    assert choices((POISON, 11)) == choices((11, 12)) == choices(())


def test_choices_end_where_numbers_do(poisoned, layout):
    runner = make_runner(poisoned, layout)
    clean = runner.forward([RowInput(1, 0, (*PROMPT, 7, 8), 3)]).choices[0]
    output = runner.forward([RowInput(0, 0, (*PROMPT, 7, POISON, 8), 4)])
    assert output.choices == (clean[:2],)
    assert not output.failed_rows
    with pytest.raises(ProtocolError, match="holds 4"):
        runner.forward([RowInput(0, 5, (7,), 1)])
    assert runner.forward([RowInput(0, 4, (8,), 1)]).choices == (clean[2:],)


@pytest.mark.parametrize("num_choices", [0, 1])
def test_a_poisoned_prompt_fails_alone_and_leaves_a_clean_slot(poisoned, layout, num_choices):
    expected = make_runner(poisoned, layout).forward(
        [RowInput(0, 0, PROMPT, 1), RowInput(1, 0, LONG, 1)]
    )
    runner = make_runner(poisoned, layout)
    runner.forward([RowInput(1, 0, (1, 2), 1)])
    bad = RowInput(0, 0, (POISON,) * 20, num_choices)
    output = runner.forward([bad, RowInput(1, 2, (3,), 1)])
    assert output.failed_rows == {0}
    assert output.choices[0] == ()
    assert is_all_finite(runner)
    assert len(output.choices[1]) == 1
    runner.release(0)
    runner.release(1)
    again = runner.forward([RowInput(0, 0, PROMPT, 1), RowInput(1, 0, LONG, 1)])
    assert again.choices == expected.choices


def test_the_cut_head_marks_them_too(poisoned, layout):
    ids = range(0, 97, 3)
    runner = ModelRunner(poisoned, layout=layout, num_slots=1, capacity=32, choices_among=ids)
    output = runner.forward([RowInput(0, 0, (3, POISON), 1)])
    assert (output.choices, output.failed_rows) == (((),), {0})


def test_a_sum_that_overflows_is_no_alarm(layout, monkeypatch):
    expected = make_runner(loaded_family("llama-gqa"), layout).forward([RowInput(0, 0, PROMPT, 2)])
    monkeypatch.setattr(KvStore, "seems_finite", lambda *_: torch.tensor(False))
    output = make_runner(loaded_family("llama-gqa"), layout).forward([RowInput(0, 0, PROMPT, 2)])
    assert (output.choices, output.failed_rows) == (expected.choices, frozenset())


def test_the_verifier_rejects_the_draft_and_fails_the_prompt(poisoned, layout):
    verifier = Verifier(make_runner(poisoned, layout), lambda: 0.0, orphan_seconds=9)

    def verify(name, tokens, drafts=()):
        entry = VerifyEntry(EntryKey(name, 0, 1), 0, tokens, drafts)
        return verifier.verify(VerifyBatch(1, (entry,)), 0.0).results[0]

    plain = verify("a", PROMPT)
    drafted = verify("b", PROMPT, (POISON, 4, 5))
    assert (drafted.num_accepted, drafted.bonus_token) == (0, plain.bonus_token)
    verifier.forget(["b"])
    failed = verify("c", (*PROMPT, POISON))
    assert failed.status is EntryStatus.FAILED
    assert "not finite" in failed.detail
    assert verifier.num_sequences == 1


@pytest.mark.parametrize("where", ["place", "write"])
def test_a_pass_that_breaks_off_leaves_nothing_to_rely_on(layout, monkeypatch, where):
    """K moved and V not, or half the layers written: the slot must start anew, and can."""
    prompts = make_prompts(2, seed=3)
    loaded = loaded_family("llama-gqa")
    first = [RowInput(i, 0, p, 1) for i, p in enumerate(prompts)]
    expected = make_runner(loaded, layout).forward(first).choices
    runner = make_runner(loaded, layout)
    runner.forward(first)

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        if where == "place":
            patch.setattr(runner._layout, "place", fail)
        else:
            patch.setattr(KvStore, "write", fail)
        with pytest.raises(RuntimeError, match="memory"):
            runner.forward([RowInput(i, len(p), (1,), 1) for i, p in enumerate(prompts)])
    with pytest.raises(ProtocolError, match="holds 0"):
        runner.forward([RowInput(1, len(prompts[1]), (1,), 1)])
    assert runner.forward(first).choices == expected


def test_a_broken_pass_leaves_no_nan_behind(poisoned, layout, monkeypatch):
    rows = [RowInput(0, 0, PROMPT, 1), RowInput(1, 0, LONG, 1)]
    expected = make_runner(poisoned, layout).forward(rows).choices
    runner = make_runner(poisoned, layout)
    with monkeypatch.context() as patch:
        patch.setattr(KvStore, "seems_finite", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.forward([RowInput(0, 0, (POISON,) * 20, 1)])
    assert not is_all_finite(runner)
    runner.release(0)
    runner.forward([rows[0]])
    assert is_all_finite(runner)
    assert runner.forward(rows).choices == expected
    assert is_all_finite(runner)


@pytest.mark.parametrize("choices_among", [None, range(0, 97, 3)])
def test_logits_that_are_not_finite_are_no_choice_of_token_0(layout, choices_among):
    """All keys and values are fine here; only what comes after the last layer is not."""
    model = tiny_model("llama-gqa")
    loaded = wrap_model(model, ModelSettings("overflows at the end"))
    runner = ModelRunner(
        loaded, layout=layout, num_slots=1, capacity=32, choices_among=choices_among
    )
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    output = runner.forward([RowInput(0, 0, PROMPT, 1)])
    assert (output.choices, output.failed_rows) == (((),), {0})
