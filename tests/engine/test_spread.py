"""Layers on several devices, as far as a machine with one kind of device can show it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.engine.kv.layout import KvLayoutName, RowSpan
from exspec.engine.kv.plan import plan_pass
from exspec.engine.kv.slots import SlotsLayout
from exspec.engine.kv.spread import SpreadKvStore
from exspec.engine.kv.store import KvShape
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.spread import find_spread
from tests.engine.conftest import loaded_family, make_prompts
from tests.engine.rounds import Limits, speculate
from tests.engine.test_contract import check, proposer
from tests.engine.tiny import save_tiny_model, tiny_model
from tests.engine.tiny_gguf import save_tiny_gguf

CPU = torch.device("cpu")
ANOTHER = torch.device("cpu", 0)
"""Another name for the same memory: layers are told apart by the names of their devices."""


def spread_loaded(family):
    loaded = loaded_family(family)
    return replace(loaded, attention=replace(loaded.attention, devices=(CPU, ANOTHER)))


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2"])
def test_layers_with_memories_of_their_own_decode_alike(family, layout):
    prompts = make_prompts(5, seed=7)
    runner = ModelRunner(spread_loaded(family), layout=layout, num_slots=8, capacity=96)
    assert isinstance(runner._layout.store, SpreadKvStore)
    assert len(runner._layout.store._stores) == 2
    propose = proposer(family, prompts, "mixed", seed=3)
    check(family, speculate(runner, prompts, propose, 4, Limits(20)))
    alone = ModelRunner(loaded_family(family), layout=layout, num_slots=8, capacity=96)
    assert runner.kv_bytes == alone.kv_bytes


def test_what_is_not_finite_is_found_in_every_memory():
    model = SlotsLayout(KvShape(2, 1, 4, 4, 2, 8, torch.float64, CPU, layer_devices=(CPU, ANOTHER)))
    addresses = plan_pass(model.place([RowSpan(0, 1, 0, 3)]), model.store, 1).write_addresses
    for layer_index in range(2):
        values = torch.zeros(1, 3, 4, dtype=torch.float64)
        values[0, 1] = float("nan")
        model.store.write(layer_index, addresses, torch.zeros_like(values), values)
        assert not model.store.seems_finite(addresses)
        assert model.store.finite_tokens(addresses).tolist() == [True, False, True]
        model.store.clear(1, slice(None))
        assert model.store.seems_finite(addresses)


def test_a_plan_goes_where_its_layer_is():
    layout = SlotsLayout(KvShape(1, 1, 4, 4, 4, 32, torch.float64, CPU))
    spans = [RowSpan(0, 0, 0, 3), RowSpan(1, 1, 2, 2)]
    plan = plan_pass(layout.place(spans), layout.store, 1)
    scattered = replace(plan.groups[0], slots=torch.tensor([0, 1]))
    moved = replace(plan, groups=(scattered, *plan.groups[1:])).on(torch.device("meta"))
    (group,) = moved.groups
    parts = (moved.write_addresses, group.slots, group.gather, group.scatter, group.mask)
    assert {part.device.type for part in parts} == {"meta"}
    assert moved.num_tokens == plan.num_tokens


@pytest.mark.parametrize(
    "device_map", ['{"": "cpu"}', '{"model": "cpu", "lm_head": "cpu"}', "auto"]
)
def test_a_map_of_one_device_loads_the_same_model(tmp_path, device_map):
    folder = save_tiny_model(tmp_path / "model", seed=3)
    row = RowInput(0, 0, (7, 8, 9, 10), 4)
    choices = []
    for given in ("", device_map):
        loaded = load_model(ModelSettings(str(folder), dtype="float64", device_map=given))
        runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=1, capacity=16)
        choices.append((runner.forward([row]).choices, loaded.facts))
    assert choices[0] == choices[1]


def test_a_gguf_file_goes_where_the_map_says(tmp_path):
    save_tiny_gguf(tmp_path / "tiny.gguf")
    settings = ModelSettings(str(tmp_path), gguf_file="tiny.gguf", device_map="auto")
    loaded = load_model(settings)
    assert loaded.facts.device in ("cpu", "cuda:0")


@pytest.mark.parametrize(
    ("device", "device_map", "reason"),
    [
        ("cpu", "auto", "contradicts"),
        ("auto", "everywhere", "is one of auto, balanced, sequential, or JSON"),
        ("auto", "[]", "is one of"),
        ("auto", "{}", "is one of"),
        ("auto", '{"model": "disk", "lm_head": "cpu"}', "nothing is fetched from disk"),
        ("auto", '{"model": "meta"}', "nothing is computed on"),
        ("auto", '{"model": {"a": 1}}', "unknown device"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(device, device_map, reason):
    with pytest.raises(InvalidRequestError, match=reason):
        find_spread(device, device_map, None)


def test_ranks_and_a_map_are_refused():
    ranks = SimpleNamespace(device=CPU, num_ranks=2)
    with pytest.raises(InvalidRequestError, match="cannot be combined"):
        find_spread("auto", "auto", ranks)  # pyright: ignore[reportArgumentType]


def test_parts_that_found_no_device_are_refused():
    model = tiny_model("llama-gqa")
    spread = find_spread("auto", "auto", None)
    spread.put(model)
    model.lm_head.to("meta")
    with pytest.raises(UnsupportedModelError, match="does not fit on the devices"):
        spread.put(model)
