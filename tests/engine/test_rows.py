"""How rows become one flat list of a usual size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.rows import filled_up, pass_size
from tests.engine.tiny import tiny_loaded


def test_sizes_are_few_and_near():
    sizes = [pass_size(number) for number in range(1, 2049)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 70
    for number, size in enumerate(sizes, start=1):
        assert number <= size <= number * 1.2
        assert pass_size(size) == size


def test_a_list_is_filled_up_with_its_last_item():
    assert filled_up(np.array([], dtype=np.int64)).tolist() == []
    assert filled_up(np.arange(16)).tolist() == list(range(16))
    assert filled_up(np.arange(17)).tolist() == [*range(17), 16, 16, 16]


@pytest.mark.parametrize("layout", list(KvLayoutName))
def test_what_fills_a_pass_up_is_not_stored(layout):
    loaded = tiny_loaded("llama-gqa")
    runner = ModelRunner(loaded, layout=layout, num_slots=2, capacity=64)
    seen = []
    handle = loaded.model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: seen.append(inputs[0].shape[1])
    )
    store = runner._layout.store
    before = store._keys.clone()
    runner.forward([RowInput(0, 0, tuple(range(2, 20)), 1)])  # 18 tokens
    handle.remove()
    assert seen == [20]
    changed = (store._keys != before).any(dim=-1).any(dim=2).any(dim=0)  # [slots, columns]
    assert not changed[1].any()
    assert int((store._keys != before).any(dim=-1)[0, 0, 0].sum()) == 18
    assert torch.isfinite(store._keys).all()
