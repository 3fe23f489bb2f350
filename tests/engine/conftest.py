"""Models are built once per session and family; references once per prompt."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.reference import generate_plain
from tests.engine.tiny import FAMILIES, VOCAB_SIZE, tiny_loaded


@functools.cache
def loaded_family(family: str, seed: int = 0):
    """`family` may end with a slash and the size of the vocabulary."""
    name, _, vocab_size = family.partition("/")
    return tiny_loaded(name, seed, vocab_size=int(vocab_size or VOCAB_SIZE))


@functools.cache
def reference_of(family: str, prompt: tuple[int, ...], max_tokens: int, stops=()):
    return generate_plain(loaded_family(family), prompt, max_tokens, stops)


def make_prompts(num_prompts: int, seed: int = 1) -> list[tuple[int, ...]]:
    """Ragged prompts of 1 to 24 tokens."""
    draw = random.Random(seed)
    return [
        tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 24)))
        for _ in range(num_prompts)
    ]


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(params=list(KvLayoutName), ids=lambda layout: layout.value)
def layout(request) -> KvLayoutName:
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny matrices gain nothing from threads, and the machine may be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
