"""What every run of a comparison has in common."""

from __future__ import annotations

import pytest

from exspec.cli.bench_runs import Wish


def wish(num_prompts: int, request_seconds: float | None) -> Wish:
    return Wish(
        "builtin", num_prompts, 64, 128, None, 1, request_seconds,
        "slots", "smollm2-135m-instruct", "smollm2-draft", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_prompts", "own", "seconds"),
    [(1, None, 900), (60, None, 900), (240, None, 3600), (240, 5.0, 5.0)],
)
def test_requests_that_wait_for_one_another_have_longer(num_prompts, own, seconds):
    assert wish(num_prompts, own).run_plan().request_seconds == seconds
