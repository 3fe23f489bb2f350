"""The padded layout's own promises: what it moves, and when it moves nothing."""

from __future__ import annotations

import random

import pytest
import torch

from exspec.engine.kv.layout import MAX_BLOCK_TOKENS, KvLayoutName, RowSpan
from exspec.engine.kv.padded import PaddedLayout
from exspec.engine.kv.store import ColumnMove, KvShape, KvStore
from exspec.engine.model_runner import ModelRunner, RowInput
from tests.engine.conftest import loaded_family, reference_of

SHAPE = KvShape(
    num_layers=2,
    num_kv_heads=3,
    key_dim=4,
    value_dim=2,
    num_slots=5,
    num_columns=40 + MAX_BLOCK_TOKENS,
    dtype=torch.float64,
    device=torch.device("cpu"),
)


def filled_store(shape=SHAPE) -> KvStore:
    store = KvStore(shape)
    for memory in (store._keys, store._values):
        memory.copy_(torch.arange(memory.numel(), dtype=torch.float64).view(memory.shape))
    return store


def place(layout, *rows):
    """Rows are (slot, start, num_tokens)."""
    return layout.place([RowSpan(i, *row) for i, row in enumerate(rows)])


@pytest.fixture
def padded():
    return PaddedLayout(SHAPE)


@pytest.mark.parametrize("shift", [-7, -1, 1, 9])
def test_move_is_as_if_copied_aside(shift):
    store, before = filled_store(), filled_store()
    num_bytes = store.move([ColumnMove(1, 10, 10 + shift, 12), ColumnMove(4, 20, 20 - shift, 5)])
    for slot, source, step, count in ((1, 10, shift, 12), (4, 20, -shift, 5)):
        for now, then in ((store._keys, before._keys), (store._values, before._values)):
            moved = now[:, slot, :, source + step : source + step + count]
            assert torch.equal(moved, then[:, slot, :, source : source + count])
    for slot in (0, 2, 3):
        assert torch.equal(store._keys[:, slot], before._keys[:, slot])
    assert num_bytes == 17 * 2 * 3 * (4 + 2) * 8


def test_equal_acceptance_moves_nothing(padded):
    place(padded, (0, 0, 5), (1, 0, 9), (2, 0, 3))
    assert place(padded, (0, 5, 4), (1, 9, 4), (2, 3, 4)).num_moved_rows == 2
    pads = [padded.left_pad(slot) for slot in range(3)]
    assert pads == [4, 0, 6]
    again = place(padded, (0, 7, 4), (1, 11, 4), (2, 5, 4))
    assert (again.num_moved_rows, again.num_moved_bytes) == (0, 0)
    assert [padded.left_pad(slot) for slot in range(3)] == pads


def test_one_row_never_moves(padded):
    start = 0
    for kept in (3, 1, 6, 2):
        assert place(padded, (3, start, 6)).num_moved_rows == 0
        start += kept


def test_only_rows_with_a_shift_move(padded):
    place(padded, (0, 0, 4), (1, 0, 4), (2, 0, 4))
    placement = place(padded, (0, 4, 3), (1, 4, 3), (2, 2, 3))
    assert placement.num_moved_rows == 1
    assert placement.num_moved_bytes == 2 * padded.store.bytes_per_column


def test_rows_of_a_block_end_together_and_pads_are_dropped(padded):
    draw = random.Random(2)
    lengths = [0] * 5
    for _ in range(40):
        rows = sorted(draw.sample(range(5), draw.randint(1, 5)))
        counts = [draw.randint(1, min(6, 40 - lengths[slot]) or 1) for slot in rows]
        placement = place(padded, *((s, lengths[s], n) for s, n in zip(rows, counts, strict=True)))
        ends = {p.origin + p.span.start for group in placement.groups for p in group}
        assert len(ends) == 1
        for slot, count in zip(rows, counts, strict=True):
            lengths[slot] += draw.randint(0, count)
            if lengths[slot] >= 38:
                lengths[slot] = 0
                padded.release(slot)


def test_shared_padding_is_dropped_at_the_end_of_the_block(padded):
    """Two short rows beside one at capacity go on in lockstep until the columns run out."""
    place(padded, (0, 0, 40), (1, 0, 8), (2, 0, 8))
    place(padded, (0, 38, 2), (1, 8, 2), (2, 8, 2))
    assert padded.left_pad(1) == 30
    for start in range(9, 38):
        placement = place(padded, (1, start, 2), (2, start, 2))
        last = max(p.origin + p.span.end for group in placement.groups for p in group)
        assert last <= SHAPE.num_columns


def test_a_long_catch_up_behind_a_pad_fits():
    """A row aligned far to the right is fed a long chunk: its pad goes, so it fits."""
    loaded = loaded_family("llama-gqa")
    runner = ModelRunner(loaded, layout=KvLayoutName.PADDED, num_slots=2, capacity=200)
    draw = random.Random(5)
    long, short = ([draw.randrange(97) for _ in range(n)] for n in (190, 180))
    runner.forward([RowInput(0, 0, tuple(long), 1), RowInput(1, 0, tuple(short[:4]), 1)])
    runner.forward([RowInput(0, 189, (1,), 1), RowInput(1, 4, (short[4],), 1)])
    output = runner.forward([RowInput(1, 5, tuple(short[5:]), 1)])
    assert output.num_moved_rows == 1
    assert output.choices[0] == reference_of("llama-gqa", tuple(short), 1)


def test_a_released_slot_starts_without_a_pad():
    runner = ModelRunner(
        loaded_family("llama-gqa"), layout=KvLayoutName.PADDED, num_slots=2, capacity=60
    )
    runner.forward([RowInput(0, 0, (5,) * 9, 1), RowInput(1, 0, (6,) * 3, 1)])
    assert runner.forward([RowInput(0, 9, (5,), 1), RowInput(1, 3, (6,), 1)]).num_moved_rows == 1
    runner.release(0)
    runner.release(1)
    assert [runner._layout.left_pad(slot) for slot in (0, 1)] == [0, 0]


def test_release_forgets_the_pad(padded):
    place(padded, (0, 0, 9), (1, 0, 5))
    place(padded, (0, 9, 1), (1, 5, 1))
    assert padded.left_pad(1) == 4
    padded.release(1)
    assert padded.left_pad(1) == 0
