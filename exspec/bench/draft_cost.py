"""What drafting K tokens costs at different context lengths, on one model over its own KV. torch.

Runs the passes of a draft worker's round (`draft_worker.model_proposer`) without the worker: the
tokens committed since the last round in one pass, then K - 1 single tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from exspec.bench.load import ignore_progress
from exspec.core.errors import InvalidRequestError
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.runtime.clock import monotonic

TINY_CONTEXT = 8
COMMITTED_TOKENS = 2
"""Fed at the start of a round: the bonus token, and the last draft token if all were accepted."""
MAX_REST_GROWTH = 0.10
"""How much a round may grow from shortest to longest context once its attention is taken out."""
_PREFILL_CHUNK = 512
_ATTENTION = "aten::scaled_dot_product_attention"
_NUM_PROFILED_ROUNDS = 5
_NUM_PREFILLED_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class DraftCostPlan:
    """Which model, at which contexts, how often. Runs on the CPU with torch's own threads."""

    model: str
    contexts: tuple[int, ...]
    num_speculative_tokens: int
    num_rounds: int

    def __post_init__(self) -> None:
        if not self.contexts or min(self.contexts) <= TINY_CONTEXT:
            raise InvalidRequestError(
                f"contexts must be longer than {TINY_CONTEXT} tokens", field="contexts"
            )
        if self.num_speculative_tokens < 1 or self.num_rounds < 1:
            raise InvalidRequestError(
                "at least one draft token and one round are needed", field="num_speculative_tokens"
            )


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Medians at one context, in seconds per round.

    `attention_seconds` is the attention operator alone, seen by torch's profiler in rounds of their
    own; `prefilled_seconds` a round that feeds the whole context first, as the paper's code does.
    """

    context: int
    round_seconds: float
    attention_seconds: float
    prefilled_seconds: float

    @property
    def rest_seconds(self) -> float:
        """A round without its attention."""
        return self.round_seconds - self.attention_seconds

    @property
    def attention_share(self) -> float:
        """Attention's share of a round."""
        return self.attention_seconds / self.round_seconds


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """All contexts, and the same at a context too short to matter."""

    tiny: DraftCost
    costs: tuple[DraftCost, ...]

    @property
    def rest_growth(self) -> float:
        """From the shortest context to the longest, attention taken out."""
        by_context = sorted(self.costs, key=lambda cost: cost.context)
        return by_context[-1].rest_seconds / by_context[0].rest_seconds - 1

    @property
    def round_growth(self) -> float:
        """The same, attention included."""
        by_context = sorted(self.costs, key=lambda cost: cost.context)
        return by_context[-1].round_seconds / by_context[0].round_seconds - 1

    @property
    def is_flat(self) -> bool:
        """Whether a round costs the same at any context, beyond attention itself."""
        return self.rest_growth <= MAX_REST_GROWTH


def measure_draft_cost(
    plan: DraftCostPlan, on_done: Callable[[], None] = ignore_progress
) -> DraftCosts:
    """Load the model, fill one slot per context, and time rounds in turn over all of them.

    Taking turns spreads what else the machine does evenly over the contexts.
    """
    contexts = (TINY_CONTEXT, *plan.contexts)
    rounds = _Rounds(plan, contexts)
    timed: list[list[float]] = [[] for _ in contexts]
    for _ in range(plan.num_rounds):
        for slot, seconds in enumerate(timed):
            seconds.append(rounds.time_round(slot))
            on_done()
    costs = [
        DraftCost(
            context=context,
            round_seconds=statistics.median(timed[slot]),
            attention_seconds=rounds.attention_seconds(slot),
            prefilled_seconds=rounds.prefilled_seconds(slot),
        )
        for slot, context in enumerate(contexts)
    ]
    return DraftCosts(costs[0], tuple(costs[1:]))


class _Rounds:
    """Owns the runner; slot i holds `contexts[i]` tokens, and every round stands at its end."""

    def __init__(self, plan: DraftCostPlan, contexts: Sequence[int]) -> None:
        self._num_drafts = plan.num_speculative_tokens
        self._contexts = tuple(contexts)
        loaded = load_model(ModelSettings(plan.model, device="cpu"))
        capacity = max(contexts) + plan.num_speculative_tokens
        if capacity > loaded.facts.max_length:
            raise InvalidRequestError(
                f"{capacity} tokens do not fit the model's {loaded.facts.max_length}",
                field="contexts",
            )
        self._runner = ModelRunner(
            loaded,
            layout=KvLayoutName.SLOTS,
            num_slots=len(contexts),
            capacity=capacity,
            choices_among=loaded.draft_vocabulary or None,
        )
        self._tokens = _any_tokens(max(contexts), loaded.facts.vocab_size)
        for slot in range(len(contexts)):
            self._prefill(slot)
            self._round(slot)  # the first one pays for set-up

    def time_round(self, slot: int) -> float:
        """Seconds of one round."""
        started = monotonic()
        self._round(slot)
        return monotonic() - started

    def attention_seconds(self, slot: int) -> float:
        """Median seconds per round inside the attention operator."""
        found: list[float] = []
        for _ in range(_NUM_PROFILED_ROUNDS):
            with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
                self._round(slot)
            events = {event.key: event for event in profiler.key_averages()}
            found.append(events[_ATTENTION].cpu_time_total / 1e6 if _ATTENTION in events else 0.0)
        return statistics.median(found)

    def prefilled_seconds(self, slot: int) -> float:
        """Median seconds of a round that feeds its whole context first."""
        found: list[float] = []
        for _ in range(_NUM_PREFILLED_ROUNDS):
            started = monotonic()
            self._prefill(slot)
            self._round(slot)
            found.append(monotonic() - started)
        return statistics.median(found)

    def _prefill(self, slot: int) -> None:
        """All of the context but what a round feeds itself."""
        end = self._contexts[slot] - COMMITTED_TOKENS
        for start in range(0, end, _PREFILL_CHUNK):
            chunk = self._tokens[start : min(start + _PREFILL_CHUNK, end)]
            self._runner.forward([RowInput(slot, start, chunk, 0)])

    def _round(self, slot: int) -> None:
        """Draft from the end of the context; the next round of the slot overwrites it."""
        start = self._contexts[slot] - COMMITTED_TOKENS
        fed = self._tokens[start : start + COMMITTED_TOKENS]
        for _ in range(self._num_drafts):
            output = self._runner.forward([RowInput(slot, start, fed, 1)])
            start += len(fed)
            fed = output.choices[0]


def _any_tokens(number: int, vocab_size: int) -> tuple[int, ...]:
    """Token ids without meaning, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(0, vocab_size, (number,), generator=generator).tolist())
