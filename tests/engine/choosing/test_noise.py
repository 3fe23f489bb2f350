"""The noise is a fixed function of seed, position and token, and looks like none."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch

from exspec.engine.choosing.arithmetic import exact_exp, exact_log, reference_log
from exspec.engine.choosing.noise import (
    counters,
    gumbels,
    hashes,
    key_of,
    lowest_hash_of,
    reference_gumbel,
    reference_hash,
    reference_uniform,
    unfinished_hashes,
    uniforms,
)

KNOWN = {
    (0, 0, 0): 2558736989570252433,
    (0, 0, 1): -533072482827883436,
    (0, 1, 0): 3391245575278488096,
    (1, 0, 0): -5653703133376969021,
    (18446744073709551615, 1048576, 49151): 371530184789824856,
    (123456789, 77, 151935): 6547796620234006975,
}
"""(seed, position, token): hash. If these change, seeds give other texts."""


def test_known_answers():
    for (seed, position, token), expected in KNOWN.items():
        assert reference_hash(seed, position, token) == expected
        found = hashes(torch.tensor([key_of(seed, position)]), torch.tensor([token]))
        assert found.tolist() == [expected]


def draw_places(number: int, seed: int = 0) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    return [
        (draw.getrandbits(64), draw.randrange(1 << 20), draw.randrange(1 << 18))
        for _ in range(number)
    ]


def test_tensors_hold_what_plain_python_computes():
    places = draw_places(500)
    keys = torch.tensor([key_of(seed, position) for seed, position, _ in places])
    tokens = torch.tensor([token for *_, token in places])
    assert hashes(keys, tokens).tolist() == [reference_hash(*place) for place in places]
    assert uniforms(keys, tokens).tolist() == [reference_uniform(*place) for place in places]
    assert gumbels(keys, tokens).tolist() == [reference_gumbel(*place) for place in places]


def test_the_noise_of_a_token_does_not_depend_on_where_it_stands():
    key = torch.tensor([[key_of(5, 6)]])
    whole = gumbels(key, torch.arange(1003))
    for begin, end in ((0, 1), (1, 18), (999, 1003), (500, 537)):
        assert torch.equal(gumbels(key, torch.arange(begin, end)), whole[:, begin:end])
    strided = torch.arange(2006)[::2] // 2
    assert torch.equal(gumbels(key, strided), whole)


def test_uniforms_are_never_0_or_1():
    highest, lowest = (1 << 63) - 1, -(1 << 63)
    for bits, expected in ((highest, 1 - 2.0**-53), (lowest, 2.0**-53)):
        upper = bits >> 12
        assert (upper + (2.0**51 + 0.5)) * 2.0**-52 == expected
        assert math.isfinite(-reference_log(-reference_log(expected)))


def test_bits_are_even_and_neighbours_are_independent():
    """Every bit is as often 1 as 0, alone and compared with the next seed, position and token."""
    size = 4096

    def bits(seed, position, first_token=0):
        tokens = torch.arange(first_token, first_token + size)
        found = hashes(torch.tensor([key_of(seed, position)]), tokens)
        return (found[:, None] >> torch.arange(64)) & 1

    base = bits(1, 1)
    for compared in (torch.zeros_like(base), bits(2, 1), bits(1, 2), bits(1, 1, 1)):
        ones = (base ^ compared).sum(dim=0).double()
        chi_square = (((ones - size / 2) ** 2) / (size / 4)).sum()
        assert 20 < chi_square < 130  # 64 degrees of freedom, far beyond one in a million
    positions = torch.tensor([[key_of(9, position)] for position in range(size)])
    ones = ((hashes(positions, torch.tensor(3)) >> torch.arange(64)) & 1).sum(dim=0).double()
    assert 20 < (((ones - size / 2) ** 2) / (size / 4)).sum() < 130


def test_gumbels_have_their_mean_and_spread():
    found = gumbels(torch.tensor([key_of(3, 4)]), torch.arange(1 << 16))
    assert found.mean().item() == pytest.approx(0.5772, abs=0.03)
    assert found.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.03)


def test_logarithm_and_exponential_are_right_to_two_units():
    numbers = torch.cat(
        (
            torch.logspace(-15, 2, 5000, dtype=torch.float64),
            1 - torch.logspace(-15, -1, 99).double(),
        )
    )
    assert ((exact_log(numbers) - numbers.log()).abs() <= 2**-51 * numbers.log().abs()).all()
    falling = -torch.logspace(-12, math.log10(700), 5000, dtype=torch.float64)
    assert ((exact_exp(falling) - falling.exp()).abs() <= 2**-51 * falling.exp()).all()
    assert exact_exp(torch.tensor([0.0, -800.0, -math.inf]).double()).tolist() == [1, 0, 0]
    ordered = exact_exp(torch.linspace(-2, 0, 9999, dtype=torch.float64)).tolist()
    assert all(a <= b for a, b in pairwise(ordered))


def test_what_can_exceed_a_bound_is_never_left_out():
    key = torch.tensor([[key_of(1, 2)]])
    tokens = torch.arange(20000)
    noise = gumbels(key, tokens)
    for bound in (-3.0, -0.5, 0.0, 1.0, 4.0, 9.0, 40.0):
        lowest = lowest_hash_of(torch.tensor([[bound]], dtype=torch.float64))
        may_exceed = unfinished_hashes(key, counters(tokens)) >= lowest
        assert not (noise > bound)[~may_exceed].any()
        if bound > 2:
            assert may_exceed.sum() <= 2 * (noise > bound).sum() + 3
