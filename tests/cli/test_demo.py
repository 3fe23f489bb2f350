"""What `exspec demo` makes of the answers: totals, and every way of decoding judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exspec.cli import demo_run
from exspec.cli.demo_run import Pair, Pass


def answers(*token_ids: tuple[int, ...], rounds: int, seconds: float) -> Pass:
    """One answer per prompt, each in so many rounds; seconds of all together."""
    results: list[Any] = [
        SimpleNamespace(
            token_ids=tokens,
            usage=SimpleNamespace(num_prompt_tokens=10),
            speculation=SimpleNamespace(
                num_rounds=rounds,
                num_accepted_tokens=len(tokens) - rounds,
                acceptance_length=len(tokens) / rounds,
            ),
            timings=SimpleNamespace(total_seconds=seconds / len(token_ids)),
        )
        for tokens in token_ids
    ]
    return Pass(tuple(results), seconds)


RIGHT = ((1, 2, 3, 4), (5, 6))
WRONG = ((1, 2, 9, 4), (5, 6))


def pair(speculative=RIGHT, plain=RIGHT) -> Pair:
    return Pair(
        answers(*speculative, rounds=2, seconds=2.0), answers(*plain, rounds=4, seconds=3.0)
    )


def test_a_prompt_is_told_by_its_own_run():
    row = demo_run._row(0, pair(), pair(), RIGHT[0])
    assert (row.num_tokens, row.num_rounds, row.acceptance_length) == (4, 2, 2.0)
    assert (row.speculative_tokens_per_second, row.plain_tokens_per_second) == (4.0, 4 / 1.5)
    assert row.is_identical
    assert row.difference == ""


@pytest.mark.parametrize(
    ("single", "at_once", "way"),
    [
        (pair(speculative=WRONG), pair(), "with speculation,"),
        (pair(plain=WRONG), pair(), "without drafts,"),
        (pair(), pair(speculative=WRONG), "with speculation among all,"),
        (pair(), pair(plain=WRONG), "without drafts among all,"),
    ],
)
def test_every_way_of_decoding_is_judged(single, at_once, way):
    row = demo_run._row(0, single, at_once, RIGHT[0])
    assert not row.is_identical
    assert row.difference == f"{way} it differs from plain decoding at token 2"
    assert demo_run._row(1, single, at_once, RIGHT[1]).is_identical


def test_a_total_counts_all_answers_in_the_time_of_all():
    total = demo_run._total("one at a time", pair(), is_identical=True)
    assert (total.num_prompt_tokens, total.num_tokens, total.num_rounds) == (20, 6, 4)
    assert total.acceptance_length == 1.5
    assert (total.speculative_tokens_per_second, total.plain_tokens_per_second) == (3.0, 2.0)
