"""What one step of a draft costs as a share of its target's plain step. torch.

Both models in one process, one token per row, steps of the two in turn over all batch sizes: what
else the machine does is spread over them evenly.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from exspec.bench.load import ignore_progress
from exspec.core.errors import InvalidRequestError
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.runtime.clock import monotonic


@dataclass(frozen=True, slots=True)
class StepCostPlan:
    """Which models, for how many rows at once, at which context, and how often."""

    draft: ModelSettings
    target: ModelSettings
    batch_sizes: tuple[int, ...]
    context: int
    num_steps: int

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise InvalidRequestError("at least one row is needed", field="batch_sizes")
        if self.context < 1 or self.num_steps < 1:
            raise InvalidRequestError("at least one token and one step", field="num_steps")


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of every step with `num_rows` rows."""

    num_rows: int
    draft_seconds: tuple[float, ...]
    target_seconds: tuple[float, ...]

    @property
    def share(self) -> float:
        """The fastest draft step as a share of the fastest plain step."""
        return min(self.draft_seconds) / min(self.target_seconds)

    @property
    def median_share(self) -> float:
        """The same of medians."""
        return statistics.median(self.draft_seconds) / statistics.median(self.target_seconds)


def measure_step_cost(
    plan: StepCostPlan, on_done: Callable[[], None] = ignore_progress
) -> tuple[StepCost, ...]:
    """Load both, fill their slots, and time steps in turn."""
    models = [_Steps(plan.draft, plan), _Steps(plan.target, plan)]
    seconds: dict[int, tuple[list[float], list[float]]] = {b: ([], []) for b in plan.batch_sizes}
    for _ in range(plan.num_steps):
        for num_rows, of_models in seconds.items():
            for model, times in zip(models, of_models, strict=True):
                model.time_step(num_rows)  # the one that finds its weights out of the caches
                times.append(model.time_step(num_rows))
            on_done()
    return tuple(
        StepCost(num_rows, tuple(draft), tuple(target))
        for num_rows, (draft, target) in seconds.items()
    )


class _Steps:
    """Owns one model's runner; every step stands at the end of the same context."""

    def __init__(self, settings: ModelSettings, plan: StepCostPlan) -> None:
        loaded = load_model(settings)
        if plan.context >= loaded.facts.max_length:
            raise InvalidRequestError(
                f"{plan.context} tokens and a step do not fit {loaded.facts.name}", field="contexts"
            )
        self._runner = ModelRunner(
            loaded,
            layout=KvLayoutName.SLOTS,
            num_slots=max(plan.batch_sizes),
            capacity=plan.context + 1,
            choices_among=loaded.draft_vocabulary or None,
        )
        self._context = plan.context
        tokens = tuple(range(plan.context))
        tokens = tuple(token % loaded.facts.vocab_size for token in tokens)
        for slot in range(max(plan.batch_sizes)):
            self._runner.forward([RowInput(slot, 0, tokens, 0)])

    def time_step(self, num_rows: int) -> float:
        """Seconds of one token for each of the first `num_rows` slots."""
        rows = [RowInput(slot, self._context, (1,), 1) for slot in range(num_rows)]
        started = monotonic()
        self._runner.forward(rows)
        return monotonic() - started
