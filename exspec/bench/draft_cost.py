"""What drafting K tokens costs at different context lengths, on one model over its own KV. torch.

Runs the passes of a draft worker's round (`draft_worker.model_proposer`) without the worker: the
tokens committed since the last round in one pass, then K - 1 single tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from exspec.bench.load import ignore_progress
from exspec.core.errors import InvalidRequestError
from exspec.engine.fused.fusing import AUTO
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner, RowInput
from exspec.runtime.clock import monotonic

TINY_CONTEXT = 8
COMMITTED_TOKENS = 2
"""Fed at the start of a round: the bonus token, and the last draft token if all were accepted."""
MAX_REST_GROWTH = 0.10
"""How much a round may grow from shortest to longest context once its attention is taken out."""
NUM_PREFILLED_ROUNDS = 5
_PREFILL_CHUNK = 512


@dataclass(frozen=True, slots=True)
class DraftCostPlan:
    """Which model, at which contexts, how often. Runs on the CPU with torch's own threads."""

    model: str
    contexts: tuple[int, ...]
    num_speculative_tokens: int
    num_rounds: int
    draft_weights: str = AUTO

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
class ObservedRound:
    """Seconds of one round, and of its attention calls alone."""

    round_seconds: float
    attention_seconds: float

    @property
    def rest_seconds(self) -> float:
        """The round without its attention."""
        return self.round_seconds - self.attention_seconds


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What was seen at one context.

    `round_seconds` are rounds nobody looked into; `observed` ones were timed inside, which costs
    them a little; in `prefilled_seconds` the whole context is fed first, as the paper's code does.
    """

    context: int
    round_seconds: tuple[float, ...]
    observed: tuple[ObservedRound, ...]
    prefilled_seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """Of a round."""
        return statistics.median(self.round_seconds)

    @property
    def fastest_seconds(self) -> float:
        """Of a round: what it costs when nothing else wants the machine."""
        return min(self.round_seconds)

    @property
    def attention_seconds(self) -> float:
        """Of attention alone, in the fastest case."""
        return min(one.attention_seconds for one in self.observed)

    @property
    def rest_seconds(self) -> float:
        """Of all but attention, in the fastest case."""
        return min(one.rest_seconds for one in self.observed)

    @property
    def attention_share(self) -> float:
        """Attention's share of an observed round."""
        return self.attention_seconds / (self.attention_seconds + self.rest_seconds)

    @property
    def prefill_ratio(self) -> float:
        """How many times more a round costs that begins with a prefill."""
        return min(self.prefilled_seconds) / self.fastest_seconds


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """All contexts, shortest first, and the same at one too short to matter.

    Growth is measured on the fastest rounds: others can only add to what a round costs.
    """

    tiny: DraftCost
    costs: tuple[DraftCost, ...]

    @property
    def rest_growth(self) -> float:
        """From the shortest context to the longest, attention taken out."""
        return self.costs[-1].rest_seconds / self.costs[0].rest_seconds - 1

    @property
    def round_growth(self) -> float:
        """The same, attention included."""
        return self.costs[-1].fastest_seconds / self.costs[0].fastest_seconds - 1

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
    contexts = (TINY_CONTEXT, *sorted(plan.contexts))
    rounds = _Rounds(plan, contexts)
    timed: list[list[float]] = [[] for _ in contexts]
    observed: list[list[ObservedRound]] = [[] for _ in contexts]
    prefilled: list[list[float]] = [[] for _ in contexts]
    for number in range(plan.num_rounds):
        for slot in range(len(contexts)):
            timed[slot].append(rounds.time_round(slot))
            observed[slot].append(rounds.observe_round(slot))
            if number < NUM_PREFILLED_ROUNDS:
                prefilled[slot].append(rounds.time_prefilled_round(slot))
            on_done()
    costs = [
        DraftCost(context, tuple(timed[i]), tuple(observed[i]), tuple(prefilled[i]))
        for i, context in enumerate(contexts)
    ]
    return DraftCosts(costs[0], tuple(costs[1:]))


class _AttentionTimer(TorchFunctionMode):
    """Adds up the time spent in torch's attention function inside its `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Every torch function that is called passes here."""
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        started = monotonic()
        result = func(*args, **(kwargs or {}))
        self.seconds += monotonic() - started
        return result


class _Rounds:
    """Owns the runner; slot i holds `contexts[i]` tokens, and every round stands at its end."""

    def __init__(self, plan: DraftCostPlan, contexts: Sequence[int]) -> None:
        self._num_drafts = plan.num_speculative_tokens
        self._contexts = tuple(contexts)
        loaded = load_model(
            ModelSettings(plan.model, device="cpu", draft_weights=plan.draft_weights)
        )
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

    def observe_round(self, slot: int) -> ObservedRound:
        """One round, timed inside."""
        with _AttentionTimer() as timer:
            seconds = self.time_round(slot)
        return ObservedRound(seconds, timer.seconds)

    def time_prefilled_round(self, slot: int) -> float:
        """Seconds of a round that feeds its whole context first."""
        started = monotonic()
        self._prefill(slot)
        self._round(slot)
        return monotonic() - started

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
