"""What choosing tokens costs a verify pass, by what the request asks for. torch.

Runs the passes of a target worker without the worker: rows at the end of their context feed the
last committed token and K drafts, and make K + 1 choices each. Greedy passes and passes with rules
take turns, so that what else the machine does is spread evenly over them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from exspec.bench.load import ignore_progress
from exspec.bench.profiling import Step, steps_of
from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError
from exspec.engine.kv.layout import KvLayoutName
from exspec.engine.loaded import LoadedModel
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.model_runner import ModelRunner
from exspec.engine.rows import RowInput
from exspec.runtime.clock import monotonic

MAX_SHARE = 0.10
"""What plain sampling may add to a verify pass."""
GREEDY = "greedy"
BOUND_KIND = "temperature 1, top-p 0.95"
BOUND_BATCH_SIZE = 8
_PREFILL_CHUNK = 512
_PROFILED_FOLDER = "exspec/engine/choosing/"


def kinds_of_rules(num_prompt_tokens: int) -> dict[str, ChoiceRules]:
    """What requests may ask for, by name; each is measured against greedy decoding."""
    greedy = ChoiceRules(num_prompt_tokens)
    sampled = replace(greedy, temperature=1.0)
    return {
        "temperature 1": sampled,
        BOUND_KIND: replace(sampled, top_p=0.95),
        "the same, top-k 50": replace(sampled, top_p=0.95, top_k=50),
        "penalties": replace(
            greedy, repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.5
        ),
        "logprobs 5": replace(greedy, num_logprobs=5),
    }


@dataclass(frozen=True, slots=True)
class ChoosingCostPlan:
    """Which model, in which passes, how often. Runs on the CPU with torch's own threads."""

    model: str
    batch_sizes: tuple[int, ...]
    num_drafts: tuple[int, ...]
    context: int
    num_passes: int

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise InvalidRequestError("batches have at least one row", field="batch_sizes")
        if not self.num_drafts or min(self.num_drafts) < 0:
            raise InvalidRequestError(
                "numbers of draft tokens are 0 or more", field="num_speculative_tokens"
            )
        if self.context < 2 or self.num_passes < 1:
            raise InvalidRequestError(
                "a context of two tokens and one pass are needed at least", field="context"
            )


@dataclass(frozen=True, slots=True)
class Spent:
    """One pass: seconds on the clock, and of this process on all processors together."""

    seconds: float
    processor_seconds: float


@dataclass(frozen=True, slots=True)
class ChoosingCost:
    """One kind of rules in passes of one shape: greedy passes and passes with rules, in pairs that
    ran one after the other. `steps`: where the choosing's own time goes.
    """

    kind: str
    batch_size: int
    num_drafts: int
    greedy: tuple[Spent, ...]
    ruled: tuple[Spent, ...]
    steps: tuple[Step, ...]

    @property
    def share(self) -> float:
        """What is added to a greedy pass, as a share of its time: median over the pairs."""
        return self._added(lambda spent: spent.seconds)

    @property
    def processor_share(self) -> float:
        """The same in processor time, which a busy machine disturbs less."""
        return self._added(lambda spent: spent.processor_seconds)

    def _added(self, of: Callable[[Spent], float]) -> float:
        pairs = zip(self.ruled, self.greedy, strict=True)
        return statistics.median(of(ours) / of(greedy) for ours, greedy in pairs) - 1

    @property
    def is_bounded(self) -> bool:
        """Whether the promise is about this one."""
        return self.kind == BOUND_KIND and self.batch_size == BOUND_BATCH_SIZE


def measure_choosing_cost(
    plan: ChoosingCostPlan, text: str, on_done: Callable[[], None] = ignore_progress
) -> list[ChoosingCost]:
    """Load the model, fill a slot per row with parts of a text, time passes of every shape and
    kind.

    It should be what people write: how many tokens may follow depends on it.
    """
    passes = _Passes(plan, text)
    found: list[ChoosingCost] = []
    for batch_size in plan.batch_sizes:
        for num_drafts in plan.num_drafts:
            for kind in kinds_of_rules(0):
                found.append(passes.measure(kind, batch_size, num_drafts))
                on_done()
    return found


class _Passes:
    """Owns the runner; every slot holds its own part of a text, and each pass stands at its end."""

    def __init__(self, plan: ChoosingCostPlan, text: str) -> None:
        self._plan = plan
        loaded = load_model(ModelSettings(plan.model, device="cpu"))
        self._most_drafts = max(plan.num_drafts)
        length = plan.context + self._most_drafts
        if length > loaded.facts.max_length:
            raise InvalidRequestError(
                f"{length} tokens do not fit the model's {loaded.facts.max_length}",
                field="context",
            )
        num_rows = max(plan.batch_sizes)
        self._runner = ModelRunner(
            loaded, layout=KvLayoutName.SLOTS, num_slots=num_rows, capacity=length
        )
        self._texts = _parts(loaded, text, num_rows, length)
        for slot in range(num_rows):
            self._prefill(slot)

    def measure(self, kind: str, batch_size: int, num_drafts: int) -> ChoosingCost:
        """Greedy and with rules in turn, the first of each for set-up; then where the time goes."""
        greedy = self._rows(GREEDY, batch_size, num_drafts)
        ruled = self._rows(kind, batch_size, num_drafts)
        self._time(greedy), self._time(ruled)
        pairs = [(self._time(greedy), self._time(ruled)) for _ in range(self._plan.num_passes)]
        steps = steps_of(
            lambda: self._runner.forward(ruled), self._plan.num_passes, _PROFILED_FOLDER
        )
        greedy_spent, ruled_spent = zip(*pairs, strict=True)
        return ChoosingCost(kind, batch_size, num_drafts, greedy_spent, ruled_spent, steps)

    def _time(self, rows: Sequence[RowInput]) -> Spent:
        started, used = monotonic(), time.process_time()
        self._runner.forward(rows)
        return Spent(monotonic() - started, time.process_time() - used)

    def _rows(self, kind: str, batch_size: int, num_drafts: int) -> list[RowInput]:
        """The last token of the context and K more; half of the context counts as the prompt."""
        start = self._plan.context - 1
        rules = kinds_of_rules(self._plan.context // 2).get(kind)
        return [
            RowInput(
                slot=slot,
                start=start,
                tokens=self._texts[slot][start : start + 1 + num_drafts],
                num_choices=num_drafts + 1,
                choosing=rules and self._runner.open_choosing(replace(rules, seed=slot)),
                history=self._texts[slot][:start],
            )
            for slot in range(batch_size)
        ]

    def _prefill(self, slot: int) -> None:
        end = self._plan.context - 1
        for start in range(0, end, _PREFILL_CHUNK):
            chunk = self._texts[slot][start : min(start + _PREFILL_CHUNK, end)]
            self._runner.forward([RowInput(slot, start, chunk, 0)])


def _parts(loaded: LoadedModel, text: str, number: int, length: int) -> list[tuple[int, ...]]:
    """Parts of the text, `length` tokens each. A model without a tokenizer gets numbers."""
    if loaded.tokenizer.tokenizer_json:
        tokens = tuple(Tokenizer.from_str(loaded.tokenizer.tokenizer_json).encode(text).ids)
    else:
        tokens = tuple(range(loaded.facts.vocab_size))
    repeats = tokens * (2 + length // len(tokens))
    starts = [len(tokens) * row // number for row in range(number)]
    return [repeats[start : start + length] for start in starts]
