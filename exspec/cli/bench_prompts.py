"""Which prompts of a data set a benchmark of few of them takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exspec.audit.datasets import DatasetPrompt


def prompts_by_task(dataset: str, num_prompts: int | None) -> tuple[DatasetPrompt, ...]:
    """So many prompts (None: all) spread over the categories and within each of them.

    Of a category of 40 every tenth is taken if four are wanted: files are ordered, and the first
    ones are not like the others. Spec-Bench's categories are its six tasks; MT-Bench, one of them,
    is eight categories in its file: they take turns within it.

    Raises:
        InvalidRequestError: as `load_prompts`; there may be fewer than asked for.
    """
    from exspec.audit.datasets import SPEC_BENCH, load_prompts, spread
    from exspec.bench.drafts import folded

    everything = load_prompts(dataset)
    number = len(everything) if num_prompts is None else num_prompts
    if dataset.startswith(f"{SPEC_BENCH}:"):
        in_turns = spread(everything, len(everything))
        everything = tuple(replace(one, category=folded(one.category)) for one in in_turns)
    by_category: dict[str, list[DatasetPrompt]] = {}
    for one in everything:
        by_category.setdefault(one.category, []).append(one)
    share = -(-number // len(by_category))
    thinned = [one for prompts in by_category.values() for one in _every_nth(prompts, share)]
    if len(thinned) < number:  # some categories are small: the others have to give more
        return spread(everything, number)
    return spread(thinned, number)


def _every_nth(prompts: Sequence[DatasetPrompt], number: int) -> list[DatasetPrompt]:
    """So many of them, at equal distances; all if there are no more."""
    number = min(number, len(prompts))
    return [prompts[index * len(prompts) // number] for index in range(number)]
