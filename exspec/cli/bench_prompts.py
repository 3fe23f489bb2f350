"""Which prompts of a data set a benchmark of few of them takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exspec.audit.datasets import DatasetPrompt


def prompts_by_task(dataset: str, num_prompts: int | None) -> tuple[DatasetPrompt, ...]:
    """So many prompts (None: all) spread over the categories; Spec-Bench's are its six tasks.

    MT-Bench, one of the six, is eight categories in its file: they take turns within it.

    Raises:
        InvalidRequestError: as `load_prompts`; there may be fewer than asked for.
    """
    from exspec.audit.datasets import SPEC_BENCH, load_prompts, spread
    from exspec.bench.drafts import folded

    everything = load_prompts(dataset)
    number = len(everything) if num_prompts is None else num_prompts
    if not dataset.startswith(f"{SPEC_BENCH}:"):
        return spread(everything, number)
    in_turns = spread(everything, len(everything))
    return spread([replace(one, category=folded(one.category)) for one in in_turns], number)
