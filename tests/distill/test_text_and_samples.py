"""Text and labels are the target's own; samples cover it all, and what is held out stays out."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError, ProtocolError
from exspec.distill.completions import Job, complete
from exspec.distill.labels import label
from exspec.distill.openers import TASKS, draw_turn
from exspec.distill.prompts import read_prompts
from exspec.distill.samples import collate, epoch_batches, split_samples
from exspec.distill.texts import Conversation
from exspec.distill.units import UnitStore, make_unit
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner, RowInput
from tests.engine.conftest import loaded_family, make_prompts, reference_of
from tests.engine.tiny import VOCAB_SIZE

FAMILY = "llama-gqa"
NO_STOPS = frozenset[int]()


def runner_of(num_slots, capacity=96, layout=KvLayoutName.SLOTS):
    return ModelRunner(loaded_family(FAMILY), layout=layout, num_slots=num_slots, capacity=capacity)


def job(prompt, number=12, stops=NO_STOPS, rules=None):
    return Job(tuple(prompt), number, frozenset(stops), rules)


@pytest.mark.parametrize("num_slots", [1, 3, 16])
def test_completions_are_what_plain_decoding_gives(num_slots):
    """In any company, with slots closed up as jobs of different sizes end."""
    prompts = make_prompts(11, seed=1)
    sizes = [1, 9, 2, 15, 3, 4, 15, 1, 2, 12, 3]
    jobs = [job(p, n) for p, n in zip(prompts, sizes, strict=True)]
    counted = []
    done = complete(runner_of(num_slots), jobs, counted.append)
    assert done == [reference_of(FAMILY, p, n) for p, n in zip(prompts, sizes, strict=True)]
    assert sum(counted) == sum(sizes)


def test_a_completion_ends_with_its_stop_token():
    prompt = make_prompts(1, seed=2)[0]
    plain = reference_of(FAMILY, prompt, 12)
    stop = plain[5]
    (new,) = complete(runner_of(2), [job(prompt, stops={stop})], lambda _: None)
    assert new == plain[: plain.index(stop) + 1]


def test_sampled_completions_depend_on_their_seed_alone():
    prompts = make_prompts(6, seed=3)
    jobs = [
        job(p, rules=ChoiceRules(len(p), temperature=1.0, seed=i)) for i, p in enumerate(prompts)
    ]
    alone = [complete(runner_of(1), [one], lambda _: None)[0] for one in jobs]
    assert complete(runner_of(4), jobs[::-1], lambda _: None) == alone[::-1]
    assert alone != [reference_of(FAMILY, p, 12) for p in prompts]


def test_jobs_that_do_not_fit_get_less_and_hold_up_nobody():
    fits, too_long, half = make_prompts(3, seed=4)
    long, rest = (*too_long, *[1] * 96), (*half, *[1] * (92 - len(half)))
    done = complete(runner_of(3), [job(long), job(fits), job(rest)], lambda _: None)
    assert done == [(), reference_of(FAMILY, fits, 12), reference_of(FAMILY, rest, 5)]


@pytest.mark.parametrize("layout", KvLayoutName)
def test_a_row_goes_on_in_another_slot(layout):
    prompts = make_prompts(3, seed=5)
    runner = runner_of(5, layout=layout)
    for slot, prompt in zip((4, 1, 2), prompts, strict=True):
        runner.forward([RowInput(slot, 0, prompt, 1)])
    with pytest.raises(ProtocolError, match="slot 1 cannot be moved to slot 2"):
        runner.relocate(1, 2)
    runner.relocate(4, 0)
    rows = [RowInput(s, len(p), (7,), 1) for s, p in zip((0, 1, 2), prompts, strict=True)]
    expected = [reference_of(FAMILY, (*prompt, 7), 1) for prompt in prompts]
    assert list(runner.forward(rows).choices) == expected
    with pytest.raises(ProtocolError, match="holds 0"):
        runner.forward([RowInput(4, 3, (7,), 1)])


def test_a_slot_that_was_left_dirty_is_clean_once_a_row_moved_in():
    runner = runner_of(2)
    (prompt,) = make_prompts(1, seed=5)
    for memory in (runner._layout.store._keys, runner._layout.store._values):
        memory[:, 0] = torch.nan  # a pass that did not come to its end
    runner._unclean.add(0)
    runner.forward([RowInput(1, 0, prompt, 1)])
    runner.relocate(1, 0)
    assert runner._layout.store._keys[:, 0].isfinite().all()
    assert runner.forward([RowInput(0, len(prompt), (7,), 1)]).choices == (
        reference_of(FAMILY, (*prompt, 7), 1),
    )


def conversations(number=24, seed=0):
    draw = random.Random(seed)
    made = []
    for index, prompt in enumerate(make_prompts(number, seed=seed)):
        answer = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 9))]
        made.append(Conversation((*prompt, *answer), 1, len(prompt), index % 3 != 0, "test"))
    return made


def test_labels_are_the_likeliest_tokens_at_every_place():
    made = conversations(7)
    model = loaded_family(FAMILY).model
    labels = label(model, made, 4, lambda _: None)
    runner = runner_of(1)
    place = 0
    for one in made:
        size = len(one.tokens) - 1
        assert labels.token_ids[place : place + size, 0].tolist() == list(
            runner.forward([RowInput(0, 0, one.tokens[:-1], size)]).choices[0]
        )
        place += size
    assert labels.token_ids.shape == (place, 4)
    assert (labels.logprobs.diff(dim=-1) <= 0).all()
    assert (labels.logprobs.float().exp().sum(-1) <= 1.001).all()


def unit_of(made):
    return make_unit(made, label(loaded_family(FAMILY).model, made, 3, lambda _: None))


def test_units_come_back_as_they_were_written(tmp_path):
    store, unit = UnitStore(tmp_path), unit_of(conversations())
    store.write(3, unit)
    assert store.has(3)
    assert not store.has(2)
    back = store.read(3)
    for field in dataclasses.fields(unit):
        assert torch.equal(getattr(back, field.name), getattr(unit, field.name)), field.name


def test_a_damaged_unit_is_named(tmp_path):
    store = UnitStore(tmp_path)
    store.write(0, unit_of(conversations(3)))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InvalidRequestError, match=path.name):
        store.read(0)


def test_held_out_conversations_are_greedy_and_never_trained_on():
    made = conversations(40)
    units = [unit_of(made[:24]), unit_of(made[24:])]
    samples, held_out = split_samples(units)
    assert (len(samples), len(held_out)) == (37, 3)
    greedy = [one.tokens for one in made if one.is_greedy]
    assert [tuple(one.tokens.tolist()) for one in held_out] == greedy[:3]
    everything = sorted(tuple(one.tokens.tolist()) for one in (*samples, *held_out))
    assert everything == sorted(one.tokens for one in made)


def test_what_is_held_out_shares_no_prompt_with_what_is_trained_on():
    """A file of few prompts is answered again and again, and greedily always the same."""
    made = conversations(24)
    again = [made[i % 8] for i in range(24)]
    samples, held_out = split_samples([unit_of(again), unit_of(again)])
    assert len(held_out) == 1
    prompts = [tuple(one.tokens[: one.answer_start].tolist()) for one in samples]
    held = tuple(held_out[0].tokens[: held_out[0].answer_start].tolist())
    assert held not in prompts
    assert len(set(prompts)) == 7
    samples, held_out = split_samples([unit_of([made[1]] * 6)])
    assert (len(samples), held_out) == (6, [])


@pytest.mark.parametrize("seed", [0, (1 << 63) - 1])
def test_any_seed_orders_an_epoch(seed):
    samples, _ = split_samples([unit_of(conversations(9))])
    order = [i for batch in epoch_batches(samples, 64, seed, 3) for i in batch]
    assert sorted(order) == list(range(len(samples)))


def test_an_epoch_holds_every_sample_once_and_every_epoch_another_order():
    samples, _ = split_samples([unit_of(conversations(60))])
    epochs = [list(epoch_batches(samples, 64, 5, epoch)) for epoch in (0, 0, 1)]
    assert epochs[0] == epochs[1] != epochs[2]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(len(samples)))
        widths = [max(len(samples[i].tokens) for i in batch) * len(batch) for batch in batches]
        assert max(widths) <= 64


def test_batches_know_which_labels_are_of_answers():
    samples, _ = split_samples([unit_of(conversations(5))])
    batch = collate(samples)
    assert int(batch.wanted.sum()) == len(batch.label_ids) == len(batch.in_answer)
    num_answer = sum(len(one.tokens) - one.answer_start for one in samples)
    assert int(batch.in_answer.sum()) == num_answer
    first = len(samples[0].tokens) - 1
    expected = [place >= samples[0].answer_start for place in range(1, first + 1)]
    assert batch.in_answer[:first].tolist() == expected


def test_turns_are_drawn_from_all_tasks():
    names = {draw_turn(random.Random(seed))[0] for seed in range(400)}
    assert names == {task.name for task in TASKS}
    assert draw_turn(random.Random(7)) == draw_turn(random.Random(7))


def test_prompts_are_read_from_lines_and_from_json(tmp_path):
    lines = tmp_path / "prompts.txt"
    lines.write_text("one\n\n  two \n", encoding="utf-8")
    assert read_prompts(lines) == ("one", "two")
    records = tmp_path / "prompts.jsonl"
    records.write_text('{"prompt": "a\\nb"}\n{"prompt": "c", "more": 1}\n', encoding="utf-8")
    assert read_prompts(records) == ("a\nb", "c")
    records.write_text('{"prompt": "a"}\n', encoding="utf-8-sig")
    assert read_prompts(records) == ("a",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n", "holds no prompt"),
        ("{", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ('{"text": "x"}', "line 1: 'prompt'"),
        ('{"prompt": "half \\ud83d"}', "line 1: 'prompt'"),
    ],
)
def test_files_without_prompts_are_refused(text, told, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequestError, match=told):
        read_prompts(path)
