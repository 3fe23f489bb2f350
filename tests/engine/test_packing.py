"""Packed linear layers compute what plain ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, wrap_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.engine.packing import PackedLinear, can_pack, pack_linears
from tests.engine.tiny import FAMILIES, tiny_model

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 8, 48, 300])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_packed_equals_plain(num_rows, bias):
    torch.manual_seed(0)
    linear = nn.Linear(36, 52, bias=bias)
    packed = PackedLinear(linear)
    inputs = torch.randn(1, num_rows, 36)
    torch.testing.assert_close(packed(inputs), linear(inputs))
    torch.testing.assert_close(packed.weight, linear.weight.detach())
    if num_rows:
        strided = inputs.transpose(0, 1)
        torch.testing.assert_close(packed(strided), linear(strided))


def test_only_float32_on_a_cpu_is_packed():
    assert can_pack(torch.zeros(2, 2))
    assert not can_pack(torch.zeros(2, 2, dtype=torch.float64))
    assert not can_pack(torch.zeros(2, 2, device="meta"))
    assert pack_linears(tiny_model("llama-gqa")) == 0


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_packed_model_gives_the_same_logits(family):
    ids = torch.tensor([[5, 0, 96, 3, 3, 8]])
    model = tiny_model(family, dtype=torch.float32).eval()
    plain = model(ids).logits
    loaded = wrap_model(model, ModelSettings("tiny"))
    assert any(isinstance(module, PackedLinear) for module in loaded.model.modules())
    torch.testing.assert_close(loaded.model(ids).logits, plain, rtol=1e-4, atol=1e-4)
    runner = ModelRunner(loaded, layout=KvLayoutName.SLOTS, num_slots=1, capacity=16)
    row = RowInput(0, 0, tuple(ids[0].tolist()), 6)
    assert runner.forward([row]).choices[0] == tuple(plain[0].argmax(-1).tolist())


def test_facts_are_taken_before_packing():
    model = tiny_model("llama-gqa", dtype=torch.float32)
    num_parameters = sum(weights.numel() for weights in model.parameters())
    facts = wrap_model(model, ModelSettings("tiny")).facts
    assert (facts.num_parameters, facts.vocab_size) == (num_parameters, 97)
