"""How many drafts are accepted when tokens are sampled, by how the draft chooses its own.

A draft that draws with the target's noise is held against one that proposes its likeliest token.
The same requests with the same seeds go to both, and once without any draft: what is generated may
not differ. Starting the clusters is the caller's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exspec.bench.load import LoadPlan, ignore_progress, run_load
from exspec.client import GenerateOptions
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import SpeculationStats

SHARED = "shared"
GREEDY = "greedy"
METHODS = (SHARED, GREEDY)
"""Of choosing drafts, as a draft worker's --draft-sample-method names them."""

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """How the target chooses."""

    temperature: float
    top_p: float = 1.0


def settings_of(temperatures: Sequence[float], top_ps: Sequence[float]) -> tuple[Setting, ...]:
    """Every temperature with every top-p; greedy decoding once, which top-p does not touch."""
    found = [
        Setting(temperature, top_p if temperature else 1.0)
        for temperature in temperatures
        for top_p in top_ps
    ]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What is sent. Stop tokens are ignored, so that the number of tokens is the same for all.

    Request i has seed `first_seed` + i; `num_speculative_tokens` are drafted per round.
    """

    settings: tuple[Setting, ...]
    num_speculative_tokens: int
    max_tokens: int
    num_in_flight: int
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise InvalidRequestError(
                "at least one draft token per round is needed", field="num_speculative_tokens"
            )
        if not self.settings:
            raise InvalidRequestError("at least one temperature is needed", field="temperatures")

    def load(self, setting: Setting, num_speculative_tokens: int) -> LoadPlan:
        """The requests of one run."""
        options: GenerateOptions = {
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": setting.temperature,
            "top_p": setting.top_p,
            "num_speculative_tokens": num_speculative_tokens,
        }
        return LoadPlan(self.num_in_flight, options, first_seed=self.first_seed)


@dataclass(frozen=True, slots=True)
class SamplingSample:
    """One setting with one kind of draft: all its requests' drafts, and what was generated."""

    setting: Setting
    method: str
    speculation: SpeculationStats
    token_ids: tuple[TokenIds, ...]

    def num_identical(self, plain: Sequence[TokenIds]) -> int:
        """Requests whose tokens are all those of plain decoding."""
        return sum(own == other for own, other in zip(self.token_ids, plain, strict=True))

    @property
    def rates_per_position(self) -> tuple[float, ...]:
        """Of the first, second, … draft token of a round, where it was verified, how many were
        accepted."""
        stats = self.speculation
        pairs = zip(
            stats.num_accepted_per_position,
            stats.num_drafts_per_position,
            strict=True,
        )
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)

    @property
    def first_rate(self) -> float:
        """How often the draft's choice right after what is committed is the target's."""
        return self.rates_per_position[0] if self.rates_per_position else 0.0


@dataclass(slots=True)
class SamplingRuns:
    """Owns what was measured: plain tokens by setting, and a sample per setting and method."""

    plan: SamplingPlan
    plain: dict[Setting, tuple[TokenIds, ...]] = field(
        default_factory=dict[Setting, tuple[TokenIds, ...]]
    )
    samples: list[SamplingSample] = field(default_factory=list[SamplingSample])

    @property
    def is_exact(self) -> bool:
        """Whether every request came out as plain decoding has it."""
        return all(
            sample.token_ids == self.plain[sample.setting]
            for sample in self.samples
            if sample.setting in self.plain
        )

    def sample_of(self, setting: Setting, method: str) -> SamplingSample | None:
        """The one that was measured."""
        found = (s for s in self.samples if (s.setting, s.method) == (setting, method))
        return next(found, None)

    def measure_plain(
        self,
        address: str,
        prompts: Sequence[TokenIds],
        on_done: Callable[[], None] = ignore_progress,
    ) -> None:
        """All settings without drafts, for comparison.

        Raises:
            ExspecError: a request failed, so that the figures would mean nothing.
        """
        for setting in self.plan.settings:
            outcome = run_load(address, prompts, self.plan.load(setting, 0), on_done)
            outcome.raise_first_error()
            self.plain[setting] = tuple(result.token_ids for result in outcome.completed)

    def measure(
        self,
        address: str,
        prompts: Sequence[TokenIds],
        method: str,
        on_done: Callable[[], None] = ignore_progress,
    ) -> None:
        """All settings on a cluster whose draft chooses by this method.

        Raises:
            ExspecError: a request failed, so that the figures would mean nothing.
        """
        for setting in self.plan.settings:
            load = self.plan.load(setting, self.plan.num_speculative_tokens)
            outcome = run_load(address, prompts, load, on_done)
            outcome.raise_first_error()
            tokens = tuple(result.token_ids for result in outcome.completed)
            self.samples.append(SamplingSample(setting, method, outcome.speculation, tokens))
