"""Drafts for one target, compared on the same prompts: how long what they propose is accepted.

What is sent, and what is made of the answers. Starting a cluster per draft is the caller's part;
what drafting costs is `exspec.bench.draft_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from exspec.bench.draft_steps import StepCost
from exspec.bench.load import LoadPlan, ignore_progress, run_load
from exspec.client import Client, GenerateOptions, GenerationResult
from exspec.core.cluster import Totals
from exspec.core.errors import InvalidRequestError
from exspec.core.generation import SpeculationStats

NGRAM = "ngram"
LOOKUP = "lookup"
VOCAB = "vocab="
ALL = "all"
MT_BENCH = "mt_bench"
MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
"""Spec-Bench names them one by one in its file, and its paper tells them as one."""

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """A draft as it is named on a command line, and what its worker is told.

    None leaves a setting to the worker.
    """

    name: str
    model: str
    lookup: str | None = None
    draft_vocab: str | None = None


def draft_of(name: str) -> DraftChoice:
    """A model, with `+lookup` beside look-up and with `+vocab=N` among N tokens, or `ngram`.

    Raises:
        InvalidRequestError: no model is named, or `ngram` is to have what only models have.
    """
    model, lookup, draft_vocab = name.strip(), "off", None
    while "+" in model:
        rest, _, extra = model.rpartition("+")
        if extra == LOOKUP:
            lookup = "beside"
        elif extra.startswith(VOCAB):
            draft_vocab = extra.removeprefix(VOCAB)
        else:  # part of a model's name
            break
        model = rest
    if not model or (model == NGRAM and name != NGRAM):
        raise InvalidRequestError(
            f"a draft is {NGRAM}, a model, or MODEL+{LOOKUP} or MODEL+{VOCAB}N, not {name!r}",
            field="draft",
        )
    return DraftChoice(name, model, None if model == NGRAM else lookup, draft_vocab)


def folded(category: str) -> str:
    """A category as Spec-Bench's paper tells it."""
    return MT_BENCH if category in MT_BENCH_CATEGORIES else category


@dataclass(frozen=True, slots=True)
class DraftsPlan:
    """What is sent: greedy requests, `batch_size` of them in flight."""

    num_speculative_tokens: int
    max_tokens: int
    batch_size: int
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise InvalidRequestError(
                "at least one draft token per round is needed", field="num_speculative_tokens"
            )
        if self.max_tokens < 2:
            raise InvalidRequestError(
                "the first token is the prefill's: at least two are needed", field="max_tokens"
            )

    def load(self, num_speculative_tokens: int) -> LoadPlan:
        """The requests of one run."""
        options: GenerateOptions = {
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "ignore_eos": self.ignore_eos,
            "num_speculative_tokens": num_speculative_tokens,
        }
        return LoadPlan(self.batch_size, options)


@dataclass(frozen=True, slots=True)
class DraftTally:
    """Sums over requests, without the pass that ends a prompt and decides the first token.

    `num_accepted` counts, for the first, second, … draft token of a round, the rounds that accepted
    it. `num_looked_up` of the accepted draft tokens were looked up. `num_identical` requests have
    the tokens of plain decoding; None: not known.
    """

    num_requests: int
    num_tokens: int
    num_rounds: int
    num_accepted: tuple[int, ...]
    num_looked_up: int
    num_identical: int | None

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per round; 0 before a round."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of all rounds that accepted at least 1, 2, … draft tokens."""
        return tuple(number / max(1, self.num_rounds) for number in self.num_accepted)

    @property
    def looked_up_share(self) -> float:
        """Of the accepted draft tokens."""
        return self.num_looked_up / max(1, sum(self.num_accepted))


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """What one request brought."""

    category: str
    token_ids: TokenIds
    speculation: SpeculationStats


@dataclass(frozen=True, slots=True)
class DraftSample:
    """One draft: an answer per prompt, in order, what drafting costs, and what went wrong."""

    draft: DraftChoice
    answers: tuple[DraftAnswer, ...]
    cost: StepCost
    totals: Totals

    @property
    def num_late(self) -> int:
        """Draft batches that failed or were not waited for; their rounds accept nothing."""
        return self.totals.num_overdue_drafts + self.totals.num_draft_failures


@dataclass(slots=True)
class DraftsRuns:
    """Owns what was measured so far; `plain` are the tokens without drafts, if they are known."""

    plan: DraftsPlan
    plain: tuple[TokenIds, ...] | None = None
    samples: list[DraftSample] = field(default_factory=list[DraftSample])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def categories(self) -> tuple[str, ...]:
        """In the order of their first prompt, then that of all; "" where there is but one."""
        named = dict.fromkeys(answer.category for one in self.samples for answer in one.answers)
        return (*named, ALL) if len(named) > 1 else tuple(named)

    def tally(self, sample: DraftSample, category: str = ALL) -> DraftTally:
        """Sums over one category, or over all."""
        plain = self.plain or (None,) * len(sample.answers)
        pairs = [
            (answer, expected)
            for answer, expected in zip(sample.answers, plain, strict=True)
            if category in (answer.category, ALL)
        ]
        answers = [answer for answer, _ in pairs]
        stats = [answer.speculation for answer in answers]
        by_place = (one.num_accepted_per_position for one in stats)
        return DraftTally(
            len(answers),
            sum(max(0, len(answer.token_ids) - 1) for answer in answers),
            sum(max(0, one.num_rounds - 1) for one in stats),
            self._every_place(map(sum, zip_longest(*by_place, fillvalue=0))),
            sum(one.num_accepted_looked_up_tokens for one in stats),
            None
            if self.plain is None
            else sum(answer.token_ids == expected for answer, expected in pairs),
        )

    def measure_plain(
        self,
        address: str,
        prompts: Sequence[TokenIds],
        on_done: Callable[[], None] = ignore_progress,
    ) -> None:
        """Without drafts, for comparison.

        Raises:
            ExspecError: a request failed.
        """
        results = self._run(address, prompts, 0, on_done)
        self.plain = tuple(result.token_ids for result in results)

    def measure(
        self,
        address: str,
        draft: DraftChoice,
        prompts: Sequence[tuple[str, TokenIds]],
        cost: StepCost,
        on_done: Callable[[], None] = ignore_progress,
    ) -> None:
        """All prompts, given with their categories, on a cluster with this draft.

        Raises:
            ExspecError: a request failed, so that the figures would mean nothing.
        """
        before = _totals(address)
        tokens = [prompt for _, prompt in prompts]
        results = self._run(address, tokens, self.plan.num_speculative_tokens, on_done)
        answers = tuple(
            DraftAnswer(category, result.token_ids, result.speculation)
            for (category, _), result in zip(prompts, results, strict=True)
        )
        totals = _totals(address).since(before)
        self.samples.append(DraftSample(draft, answers, cost, totals))

    def _run(
        self,
        address: str,
        prompts: Sequence[TokenIds],
        num_speculative_tokens: int,
        on_done: Callable[[], None],
    ) -> tuple[GenerationResult, ...]:
        outcome = run_load(address, prompts, self.plan.load(num_speculative_tokens), on_done)
        outcome.raise_first_error()
        return outcome.completed

    def _every_place(self, counts: Iterable[int]) -> tuple[int, ...]:
        """As many as there are draft tokens in a round."""
        known = tuple(counts)[: self.plan.num_speculative_tokens]
        return known + (0,) * (self.plan.num_speculative_tokens - len(known))


def _totals(address: str) -> Totals:
    with Client(address) as client:
        return client.cluster_status().totals
