"""What ranks do together in the tests: `python -m tests.engine.ranks_main SCENARIOS FOLDER RANKS`.

Scenarios are separated by commas and follow each other in the same processes. Rank 0 leaves what it
found in FOLDER/SCENARIO.json, for the test to compare with a single process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import torch

from exspec.core.acceptance import speculation_cap
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import ExspecError
from exspec.core.ids import BatchId, SequenceId
from exspec.core.rounds import EntryKey, EntryStatus, VerifyBatch, VerifyEntry
from exspec.engine.calls import Stop
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.packing import PackedLinear
from exspec.engine.ranks import Ranks, join_ranks
from exspec.engine.rows import PassRunner, RowInput
from exspec.engine.sharded import ShardedRunner, follow
from exspec.runtime.launch import end_of_rank, place_of_this_process
from target_worker.verifier import Verifier

CHUNK = 16
MAX_TOKENS = 16
KEPT_TOKENS = tuple(range(2, 288, 11))
POISON = 50
"""The one token that brings numbers that are not finite, to rank 1's KV alone."""


def prompts(seed: int = 5) -> list[tuple[int, ...]]:
    """Ragged, and one that is fed in chunks."""
    draw = Random(seed)
    return [tuple(draw.randrange(97) for _ in range(n)) for n in (3, 70, 1, 12, 24)]


class Course:
    """Sequences through a verifier: more than it has slots, with drafts right, wrong and absent."""

    def __init__(self, verifier: Verifier, seed: int, truths: Sequence[Sequence[int]]) -> None:
        self._verifier = verifier
        self._draw = Random(seed)
        self._truths = truths
        self._rounds = 0
        self.new: list[list[int]] = [[] for _ in truths]
        self._held = [0] * len(truths)
        self.num_accepted = 0

    def run(self, num_drafts: int) -> list[list[int]]:
        """Three at a time, to the end; a place is released and taken by the next."""
        waiting, active = list(range(len(self._truths))), list[int]()
        released = list[SequenceId]()
        while waiting or active:
            while waiting and len(active) < 3:
                active.append(waiting.pop(0))
            self._round(active, released, num_drafts)
            done = [i for i in active if len(self.new[i]) >= MAX_TOKENS]
            released = [SequenceId(f"s{i}") for i in done]
            active = [i for i in active if i not in done]
        self._verifier.forget(released)
        assert self._verifier.num_sequences == 0
        return self.new

    def _round(self, active: list[int], released: list[SequenceId], num_drafts: int) -> None:
        self._rounds += 1
        entries = [self._entry(i, num_drafts) for i in active]
        reply = self._verifier.verify(
            VerifyBatch(BatchId(self._rounds), tuple(entries), tuple(released)), 0.0
        )
        for i, entry, result in zip(active, entries, reply.results, strict=True):
            assert result.status is EntryStatus.OK, result
            self._held[i] = result.kv_length
            if result.bonus_token is not None:
                accepted = entry.draft_tokens[: result.num_accepted]
                self.new[i] += [*accepted, result.bonus_token]
                self.num_accepted += result.num_accepted

    def _entry(self, i: int, num_drafts: int) -> VerifyEntry:
        log = [*prompts()[i], *self.new[i]]
        lacking = tuple(log[self._held[i] :])
        key = EntryKey(SequenceId(f"s{i}"), 0, self._rounds)
        if len(lacking) > CHUNK:
            return VerifyEntry(key, self._held[i], lacking[:CHUNK], is_prefill=True)
        k = speculation_cap(num_drafts, MAX_TOKENS - len(self.new[i]))
        start = len(self.new[i])
        drafts = tuple(
            t if self._draw.random() < 0.6 else (t + 1) % 97
            for t in self._truths[i][start : start + k]
        )
        return VerifyEntry(key, self._held[i], lacking, drafts)


def load(folder: Path, dtype: str, layout: KvLayoutName, ranks: Ranks | None) -> ModelRunner:
    loaded = load_model(ModelSettings(str(folder), dtype=dtype, ranks=ranks))
    assert ranks is None or not any(isinstance(m, PackedLinear) for m in loaded.model.modules())
    return ModelRunner(loaded, layout=layout, num_slots=3, capacity=128)


def serve(ranks: Ranks, runner: ModelRunner) -> ShardedRunner | None:
    """Rank 0's runner; the other ranks follow until it says stop, then get None."""
    ranks.expect_passes(timedelta(seconds=60))
    if ranks.is_leader:
        return ShardedRunner(runner, ranks)
    follow(runner, ranks)
    return None


def chosen_by_rules(runner: PassRunner) -> list[list[list[int]]]:
    """Rows that draw, one that gets stuck and a greedy one, with scored tokens, in three passes."""
    rules = ChoiceRules(3, temperature=1.0, top_p=0.9, repetition_penalty=1.3, seed=5)
    drawing = runner.open_choosing(replace(rules, num_logprobs=2, num_prompt_logprobs=0))
    everything = tuple(range(runner.facts.vocab_size))
    ending = replace(rules, min_tokens=1, ending_token_ids=everything)
    stuck = runner.open_choosing(ending)
    rows = [
        RowInput(0, 0, (3, 4, 5), 1, drawing, scored=(4, 5)),
        RowInput(1, 0, (6, 7, 8), 1, stuck),
        RowInput(2, 0, (9, 10, 11, 12), 2),
    ]
    found = [runner.forward(rows)]
    assert found[0].stuck_rows == {1}
    first = found[0].choices[0][0]
    row = RowInput(0, 3, (first, 13, 14, 15), 4, drawing, (3, 4, 5))
    found.append(runner.forward([row, RowInput(2, 4, (13,), 1)]))
    poisoned = replace(row, tokens=(first, 13, POISON, 15))
    found.append(runner.forward([poisoned, RowInput(2, 5, (14,), 1)]))
    for slot in range(3):
        runner.release(slot)
    assert [len(item.top) for item in found[1].logprobs[0]] == [2] * 4
    assert [item.token_id for item in found[0].scored[0]] == [4, 5]
    return [[list(choices) for choices in output.choices] for output in found]


def courses(ranks: Ranks, folder: Path) -> dict[str, object]:
    """All models, dtypes and layouts, plain and speculative; every load is of all ranks."""
    found: dict[str, object] = {}
    truths = json.loads((folder / "truths.json").read_text())
    for name, dtype, layout in sorted(key.split("/") for key in truths):
        key = f"{name}/{dtype}/{layout}"
        runner = load(folder / name, dtype, KvLayoutName(layout), ranks)
        sharded = serve(ranks, runner)
        if sharded is None:
            continue
        outputs = {}
        for num_drafts in (0, 4):
            verifier = Verifier(sharded, lambda: 0.0, orphan_seconds=60)
            course = Course(verifier, num_drafts, truths[key])
            outputs[str(num_drafts)] = course.run(num_drafts)
            assert (course.num_accepted > 0) == (num_drafts > 0)
        chosen = chosen_by_rules(sharded)
        ranks.send(Stop())
        facts = runner.facts
        found[key] = {
            "outputs": outputs,
            "chosen": chosen,
            "fingerprint": facts.fingerprint,
            "parameters": facts.num_parameters,
            "vocab": facts.vocab_size,
            "device": facts.device,
            "kv_bytes": [runner.kv_bytes, sharded.kv_bytes],
        }
    return found


def one_rank_not_finite(ranks: Ranks, folder: Path) -> dict[str, object]:
    """The values of rank 1's heads in the last layer overflow for one token: all must notice."""
    loaded = load_model(ModelSettings(str(folder / "llama"), dtype="float64", ranks=ranks))
    layer = loaded.model.model.layers[-1].self_attn
    is_spoilt = [False]

    def spoil(_module, _inputs, output):
        return output + float("inf") if is_spoilt[0] and not ranks.is_leader else output

    layer.v_proj.register_forward_hook(spoil)
    runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=2, capacity=64)
    forward = runner.forward

    def forward_with_poison(rows):
        is_spoilt[0] = any(POISON in row.tokens for row in rows)
        return forward(rows)

    runner.forward = forward_with_poison
    sharded = serve(ranks, runner)
    if sharded is None:
        return {}
    bad = sharded.forward([RowInput(0, 0, (3, POISON, 4), 0)])
    good = sharded.forward([RowInput(1, 0, (3, 4, 5), 1)])
    ranks.send(Stop())
    return {"bad": sorted(bad.failed_rows), "good": sorted(good.failed_rows)}


def refused_before_sending(ranks: Ranks, folder: Path) -> dict[str, object]:
    """A bad batch is an error for its caller, and the worker goes on."""
    sharded = serve(ranks, load(folder / "llama", "float64", KvLayoutName.SLOTS, ranks))
    if sharded is None:
        return {}
    errors = []
    for rows in ([RowInput(0, 3, (1,), 1)], [RowInput(9, 0, (1,), 1)], [RowInput(0, 0, (999,), 1)]):
        try:
            sharded.forward(rows)
        except ExspecError as error:
            errors.append(type(error).__name__)
    try:
        sharded.release(99)
    except ExspecError as error:
        errors.append(type(error).__name__)
    num_choices = len(sharded.forward([RowInput(0, 0, (1, 2), 1)]).choices[0])
    sharded.stop()
    return {"errors": errors, "num_choices": num_choices}


def cut_heads(ranks: Ranks, folder: Path) -> dict[str, object]:
    """Drafts among some tokens: every rank has the rows of all."""
    found: dict[str, object] = {}
    for name in ("llama", "tied"):
        loaded = load_model(ModelSettings(str(folder / name), dtype="float64", ranks=ranks))
        options = {"layout": KvLayoutName.SLOTS, "num_slots": 1, "capacity": 64}
        runner = ModelRunner(loaded, choices_among=KEPT_TOKENS, **options)
        sharded = serve(ranks, runner)
        if sharded is not None:
            found[name] = sharded.forward([RowInput(0, 0, KEPT_TOKENS, len(KEPT_TOKENS))]).choices
            ranks.send(Stop())
    return found


def broken_pass(ranks: Ranks, folder: Path) -> dict[str, object]:
    """Rank 1 fails in the middle of its second pass, in the way the folder is named after."""
    runner = load(folder.parent / "llama", "float64", KvLayoutName.SLOTS, ranks)
    if not ranks.is_leader:
        _break_second_pass(runner, folder.name)
    sharded = serve(ranks, runner)
    assert sharded is not None
    if folder.name == "hangs":
        ranks.expect_passes(timedelta(seconds=3))
    sharded.forward([RowInput(0, 0, (1, 2, 3), 1)])
    sharded.forward([RowInput(0, 3, (4,), 1)])
    raise AssertionError("a broken pass came back")


def _break_second_pass(runner: ModelRunner, way: str) -> None:
    num_passes = [0]

    def fail(*_):
        num_passes[0] += 1
        if num_passes[0] < 2:
            return
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "hangs":
            threading.Event().wait()
        raise MemoryError("no memory left on this rank")

    runner._model.model.layers[1].register_forward_pre_hook(fail)


def gguf(ranks: Ranks, folder: Path) -> dict[str, object]:
    """A quantized file, divided."""
    loaded = load_model(ModelSettings(str(folder / "tiny.gguf"), ranks=ranks))
    return {"fingerprint": loaded.facts.fingerprint, "kv_heads": loaded.attention.num_kv_heads}


def main(scenarios: str, folder: Path, num_ranks: int) -> None:
    torch.set_num_threads(1)
    place = place_of_this_process(num_ranks)
    assert place is not None
    ranks = join_ranks(place, "auto")
    for scenario in scenarios.split(","):
        found = globals()[scenario](ranks, folder)
        if ranks.is_leader:
            (folder / f"{scenario}.json").write_text(json.dumps(found))
    end_of_rank(place, 0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
