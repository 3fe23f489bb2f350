"""What every KV layout must do, against plain decoding with transformers' own cache."""

from __future__ import annotations

import random

import pytest
import torch

from exspec.core.errors import ContextLengthError, InvalidRequestError, ProtocolError
from exspec.engine.kv import plan
from exspec.engine.model_runner import ModelRunner, RowInput
from tests.engine.conftest import loaded_family, make_prompts, reference_of
from tests.engine.rounds import Generation, Limits, run_round, speculate
from tests.engine.tiny import VOCAB_SIZE

MAX_TOKENS = 20


def make_runner(family, layout, num_slots=8, capacity=96):
    return ModelRunner(loaded_family(family), layout=layout, num_slots=num_slots, capacity=capacity)


def proposer(family, prompts, kind, seed=0):
    """Drafts that are all right, all wrong, or right with a probability."""
    draw = random.Random(seed)

    def propose(request, new, k):
        truth = reference_of(family, prompts[request], MAX_TOKENS + 8)[len(new) : len(new) + k]
        chance = {"target": 1.0, "noise": 0.0, "mixed": 0.6}[kind]
        return [t if draw.random() < chance else (t + 1) % VOCAB_SIZE for t in truth]

    return propose


def check(family, sequences, max_tokens=MAX_TOKENS, stops=()):
    for sequence in sequences:
        expected = reference_of(family, sequence.prompt, max_tokens, stops)
        assert tuple(sequence.new) == expected, f"request {sequence.request}"


def test_reference_outputs_vary(family):
    outputs = [reference_of(family, prompt, MAX_TOKENS) for prompt in make_prompts(8)]
    assert len(set(outputs)) == 8
    assert sum(len(set(output)) for output in outputs) / 8 > 5


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8])
@pytest.mark.parametrize("num_drafts", [0, 1, 2, 5, 8])
def test_mixed_draft_equals_plain(family, layout, num_rows, num_drafts):
    prompts = make_prompts(num_rows, seed=num_rows)
    runner = make_runner(family, layout)
    propose = proposer(family, prompts, "mixed", seed=num_drafts)
    check(family, speculate(runner, prompts, propose, num_drafts, Limits(MAX_TOKENS)))


@pytest.mark.parametrize("num_drafts", [1, 5])
def test_perfect_draft_commits_all_and_one(family, layout, num_drafts):
    prompts = make_prompts(3)
    runner = make_runner(family, layout)
    sequences = speculate(
        runner, prompts, proposer(family, prompts, "target"), num_drafts, Limits(MAX_TOKENS)
    )
    check(family, sequences)
    for sequence in sequences:
        assert set(sequence.block_sizes[:-1]) == {num_drafts + 1}


def test_wrong_draft_commits_one(family, layout):
    prompts = make_prompts(3)
    runner = make_runner(family, layout)
    sequences = speculate(
        runner, prompts, proposer(family, prompts, "noise"), 5, Limits(MAX_TOKENS)
    )
    check(family, sequences)
    assert all(set(sequence.block_sizes) == {1} for sequence in sequences)


def test_prompts_of_pad_and_eos_ids_only(family, layout):
    prompts = [(0,), (0, 0, 0, 0, 0), (0, 1, 0, 1), (1,) * 9]
    runner = make_runner(family, layout)
    propose = proposer(family, prompts, "mixed")
    check(family, speculate(runner, prompts, propose, 5, Limits(MAX_TOKENS)))


@pytest.mark.parametrize("chunk", [1, 7, 70])
def test_chunked_prefill_beside_decoding_rows(family, layout, chunk):
    draw = random.Random(3)
    long_prompt = tuple(draw.randrange(VOCAB_SIZE) for _ in range(150))
    prompts = [(5, 6, 7), long_prompt]
    runner = make_runner(family, layout, num_slots=3, capacity=200)
    propose = proposer(family, prompts, "mixed")
    short = Generation(0, 2, prompts[0])
    run_round(runner, [short], propose, 3, Limits(MAX_TOKENS))
    for start in range(0, 149, chunk):
        rows = [RowInput(0, start, long_prompt[start : min(start + chunk, 149)], 0)]
        if not short.finished:
            rows.append(RowInput(2, short.kv, short.tokens[short.kv :], 1))
        output = runner.forward(rows)
        assert output.choices[0] == ()
        if not short.finished:
            short.kv = len(short.tokens)
            short.new += output.choices[1]
            short.finished = len(short.new) == MAX_TOKENS
    long = Generation(1, 0, long_prompt, kv=149)
    while not (short.finished and long.finished):
        run_round(runner, [short, long], propose, 3, Limits(MAX_TOKENS))
    check(family, [short, long])


def test_rewind_then_append_is_as_if_it_never_happened(family, layout):
    prompt, other = make_prompts(2, seed=9)
    straight, rewound = make_runner(family, layout), make_runner(family, layout)
    for runner in (straight, rewound):
        runner.forward([RowInput(0, 0, prompt, 1), RowInput(1, 0, other, 1)])
    rewound.forward([RowInput(0, len(prompt), (9, 8, 7, 6, 5), 5)])
    rewound.forward([RowInput(0, len(prompt) + 2, (4, 4, 4), 1), RowInput(1, len(other), (3,), 1)])
    for step in range(6):
        row = RowInput(0, len(prompt) + step, (step + 20,), 1)
        assert straight.forward([row]).choices == rewound.forward([row]).choices
    check_row = RowInput(1, len(other), (11, 12), 2)
    assert straight.forward([check_row]).choices == rewound.forward([check_row]).choices


def test_rows_join_leave_and_reuse_slots(family, layout):
    prompts = make_prompts(9, seed=4)
    propose = proposer(family, prompts, "mixed", seed=4)
    runner = make_runner(family, layout, num_slots=3)
    waiting = [Generation(i, -1, prompt) for i, prompt in enumerate(prompts)]
    done, running, free = [], [], [2, 0, 1]
    while waiting or running:
        while free and waiting:
            running.append(waiting.pop(0))
            running[-1].slot = free.pop()
        run_round(runner, running, propose, len(running) + 1, Limits(MAX_TOKENS))
        for sequence in [s for s in running if s.finished]:
            running.remove(sequence)
            done.append(sequence)
            runner.release(sequence.slot)
            free.append(sequence.slot)
    check(family, done)


def test_stop_token_at_every_place_in_a_block(family, layout):
    prompt = make_prompts(1, seed=5)[0]
    truth = reference_of(family, prompt, MAX_TOKENS)
    runner = make_runner(family, layout)
    for stop in sorted(set(truth)):
        propose = proposer(family, [prompt], "target")
        sequences = speculate(runner, [prompt], propose, 5, Limits(MAX_TOKENS, (stop,)))
        check(family, sequences, MAX_TOKENS, (stop,))
        assert sequences[0].new[-1] == stop
        assert sequences[0].new.count(stop) == 1


def test_result_is_independent_of_company_and_slot(family, layout):
    prompts = make_prompts(6, seed=6)
    alone = make_runner(family, layout)
    expected = [alone.forward([RowInput(0, 0, p, len(p))]).choices[0] for p in prompts]
    together = make_runner(family, layout)
    slots = [5, 0, 3, 7, 1, 2]
    rows = [RowInput(slot, 0, p, len(p)) for slot, p in zip(slots, prompts, strict=True)]
    assert list(together.forward(rows).choices) == expected


def test_rows_of_very_different_size_share_a_pass(family, layout):
    draw = random.Random(8)
    prompts = [tuple(draw.randrange(VOCAB_SIZE) for _ in range(n)) for n in (90, 1, 65, 3, 64)]
    runner = make_runner(family, layout, capacity=128)
    propose = proposer(family, prompts, "mixed")
    check(family, speculate(runner, prompts, propose, 4, Limits(MAX_TOKENS)))


def test_a_row_may_fill_its_slot_to_the_last_column(family, layout):
    prompts = [(3, 4, 5), (6,) * 12]
    runner = make_runner(family, layout, num_slots=2, capacity=12 + MAX_TOKENS)
    propose = proposer(family, prompts, "mixed")
    check(family, speculate(runner, prompts, propose, 8, Limits(MAX_TOKENS)))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([RowInput(0, 3, (1,), 1), RowInput(0, 3, (1,), 1)], ProtocolError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 4, (1,), 1)], ProtocolError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 3, (1,) * 94, 1)], ContextLengthError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 3, (VOCAB_SIZE,), 1)], InvalidRequestError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 3, (-1,), 1)], InvalidRequestError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 3, (), 0)], InvalidRequestError),
        ([RowInput(1, 0, (1,), 1), RowInput(0, 3, (1,), 2)], InvalidRequestError),
        ([RowInput(1, 0, (1,), 1), RowInput(8, 0, (1,), 1)], InvalidRequestError),
    ],
)
def test_a_bad_batch_touches_no_row(layout, rows, error):
    runner = make_runner("llama-gqa", layout)
    runner.forward([RowInput(0, 0, (7, 8, 9), 1)])
    with pytest.raises(error):
        runner.forward(rows)
    with pytest.raises(ProtocolError):  # slot 1 still holds nothing
        runner.forward([RowInput(1, 1, (1,), 1)])
    assert runner.forward([RowInput(0, 3, (1,), 1)]).choices[0]


def test_what_a_pass_overwrote_is_no_longer_held(layout):
    runner = make_runner("llama-gqa", layout)
    runner.forward([RowInput(0, 0, (7, 8, 9, 10, 11), 1)])
    runner.forward([RowInput(0, 2, (1,), 1)])
    with pytest.raises(ProtocolError, match="holds 3"):
        runner.forward([RowInput(0, 4, (1,), 1)])
    runner.release(0)
    with pytest.raises(ProtocolError, match="holds 0"):
        runner.forward([RowInput(0, 1, (1,), 1)])


def test_scattered_slots_read_by_copy_give_the_same(layout, monkeypatch):
    """Accelerators gather scattered slots; a CPU splits the call, or computes those between too."""
    prompts = make_prompts(4, seed=11)
    slots = (6, 0, 3, 4)

    def outputs():
        runner = make_runner("llama-gqa", layout)
        first = [RowInput(s, 0, p, 1) for s, p in zip(slots, prompts, strict=True)]
        second = [RowInput(s, len(p), (1, 2, 3), 3) for s, p in zip(slots, prompts, strict=True)]
        return runner.forward(first).choices, runner.forward(second).choices

    bridged = outputs()
    monkeypatch.setattr(plan, "_BRIDGE_COST", -1)
    assert outputs() == bridged
    monkeypatch.setattr(plan, "_runs", lambda group, device: [sorted(group, key=_slot_of)])
    monkeypatch.setattr(
        plan, "_slots_of", lambda rows, device: torch.tensor([*map(_slot_of, rows)])
    )
    assert outputs() == bridged


def _slot_of(row):
    return row.span.slot


def test_choices_among_some_tokens(family, layout):
    ids = tuple(range(0, VOCAB_SIZE, 3))
    prompt = make_prompts(1, seed=12)[0]
    loaded = loaded_family(family)
    everything = make_runner(family, layout)
    cut = ModelRunner(loaded, layout=layout, num_slots=1, capacity=64, choices_among=ids)
    row = RowInput(0, 0, prompt, len(prompt))
    full = everything.forward([row]).choices[0]
    some = cut.forward([row]).choices[0]
    assert set(some) <= set(ids)
    assert all(a == b for a, b in zip(full, some, strict=True) if a in ids)
    assert cut.forward([RowInput(0, 0, prompt, 0)]).choices == ((),)
    with pytest.raises(InvalidRequestError, match="draft vocabulary"):
        ModelRunner(loaded, layout=layout, num_slots=1, capacity=8, choices_among=[VOCAB_SIZE])


def test_warm_up_leaves_nothing_behind(family, layout):
    runner = make_runner(family, layout)
    runner.warm_up()
    prompts = make_prompts(2)
    propose = proposer(family, prompts, "mixed")
    check(family, speculate(runner, prompts, propose, 3, Limits(MAX_TOKENS)))
