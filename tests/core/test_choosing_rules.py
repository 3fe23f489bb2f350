"""Rules of choice as values: which of them a worker has to hear of, and derived seeds."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from exspec.core.choosing import ChoiceRules, derive_seed

SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS)
def test_the_first_sequence_has_the_seed_of_the_call(seed):
    assert derive_seed(seed, 0) == seed


@given(SEEDS)
def test_derived_seeds_are_64_bits_and_differ(seed):
    seeds = [derive_seed(seed, index) for index in range(64)]
    assert len(set(seeds)) == 64
    assert all(0 <= derived < 2**64 for derived in seeds)


def test_derived_seeds_stay_what_they_are():
    """Who has a seed gets the same texts from a later version."""
    assert [derive_seed(1, index) for index in range(4)] == [
        1,
        8080707969664881930,
        12737281350210069274,
        7000196516769764072,
    ]


def test_seeds_of_neighbouring_calls_share_no_derived_ones():
    derived = {derive_seed(seed, index) for seed in range(50) for index in range(1, 50)}
    assert len(derived) == 50 * 49


def test_only_what_changes_a_choice_or_a_report_is_sent():
    plain = ChoiceRules(3, top_k=5, top_p=0.5, min_p=0.1, typical_p=0.9, seed=7)
    assert plain.is_plain
    for change in (
        {"temperature": 0.5}, {"presence_penalty": 1.0}, {"logit_bias": ((1, 1.0),)},
        {"min_tokens": 1}, {"bad_words": ((1,),)}, {"banned_token_ids": (1,)},
        {"allowed_token_ids": (1,)}, {"num_logprobs": 0}, {"num_prompt_logprobs": 0},
    ):  # fmt: skip
        assert not dataclasses.replace(plain, **change).is_plain
