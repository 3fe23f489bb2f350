"""A draft vocabulary holds what the target writes most, and always what it must."""

from __future__ import annotations

import pytest
import torch

from exspec.core.errors import InvalidRequestError
from exspec.distill.vocabulary import choose_vocabulary, essential_tokens
from tests.engine.tiny import _wrap_tokenizer, tiny_model, tiny_tokenizer

COUNTS = torch.tensor([0, 3, 9, 3, 0, 9, 1, 3])


@pytest.mark.parametrize(
    ("size", "always", "expected"),
    [
        (2, (), (2, 5)),
        (3, (), (1, 2, 5)),
        (4, (), (1, 2, 3, 5)),
        (6, (), (1, 2, 3, 5, 6, 7)),
        (7, (), (0, 1, 2, 3, 5, 6, 7)),
        (3, (4,), (2, 4, 5)),
        (3, (2, 2, 4, 0), (0, 2, 4)),
        (0, (4,), tuple(range(8))),
        (8, (), tuple(range(8))),
        (99, (), tuple(range(8))),
    ],
)
def test_the_most_frequent_then_the_lowest_and_always_the_essential(size, always, expected):
    assert choose_vocabulary(COUNTS, size, always) == expected


@pytest.mark.parametrize(("size", "always"), [(2, (0, 1, 2)), (4, (8,)), (4, (-1,))])
def test_what_has_no_room_is_refused(size, always):
    with pytest.raises(InvalidRequestError) as caught:
        choose_vocabulary(COUNTS, size, always)
    assert caught.value.field == "draft_vocab"


def test_special_and_stop_tokens_are_essential():
    model = tiny_model("llama-gqa", vocab_size=97)
    model.generation_config.eos_token_id = [1, 7, 500]
    tokenizer = _wrap_tokenizer(tiny_tokenizer("words", 97))
    assert essential_tokens(model, None) == (0, 1, 7)
    assert essential_tokens(model, tokenizer) == (0, 1, 5, 7)
