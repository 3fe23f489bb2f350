"""Load on a running cluster: so many requests in flight, every answer kept. Judges nothing.

All benchmarks and the audit send their requests from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, zip_longest

from exspec.client import (
    Access,
    AsyncClient,
    Client,
    GenerateOptions,
    GenerationResult,
    PromptInput,
)
from exspec.core.cluster import Totals
from exspec.core.errors import ExspecError, InvalidRequestError
from exspec.core.generation import ChatMessage, SpeculationStats
from exspec.runtime.clock import monotonic

REQUEST_SECONDS = 1800.0


def ignore_progress() -> None:
    """For callers who do not care."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How requests are sent. `options` are those of every request, `access` lets them in.

    `num_in_flight` requests are open at any time, until none is left to send. With a `first_seed`
    each has a seed of its own: that one, the next one, …
    """

    num_in_flight: int
    options: GenerateOptions
    access: Access = field(default_factory=Access)
    first_seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_in_flight < 1:
            raise InvalidRequestError(
                f"at least one request must be in flight, not {self.num_in_flight}",
                field="batch_size",
            )

    def options_of(self, index: int) -> GenerateOptions:
        """Those of one request."""
        if self.first_seed is None:
            return self.options
        return {**self.options, "seed": self.first_seed + index}


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Per prompt, in order, its result or its error, and the seconds from its sending to its end.

    `seconds` are those from the first request to the last answer.
    """

    results: tuple[GenerationResult | ExspecError, ...]
    seconds: float
    latency_seconds: tuple[float, ...]

    @property
    def completed(self) -> tuple[GenerationResult, ...]:
        """Results of the requests that did not fail."""
        return tuple(result for result in self.results if isinstance(result, GenerationResult))

    @property
    def errors(self) -> tuple[ExspecError, ...]:
        """Errors of those that did."""
        return tuple(result for result in self.results if isinstance(result, ExspecError))

    @property
    def num_tokens(self) -> int:
        """Tokens generated."""
        return sum(len(result.token_ids) for result in self.completed)

    @property
    def speculation(self) -> SpeculationStats:
        """Sums over all requests."""
        stats = [result.speculation for result in self.completed]
        return SpeculationStats(
            sum(one.num_rounds for one in stats),
            sum(one.num_draft_tokens for one in stats),
            sum(one.num_accepted_tokens for one in stats),
            sum(one.num_wasted_tokens for one in stats),
            _sums(one.num_drafts_per_position for one in stats),
            _sums(one.num_accepted_per_position for one in stats),
            sum(one.num_looked_up_tokens for one in stats),
            sum(one.num_accepted_looked_up_tokens for one in stats),
        )

    def raise_first_error(self) -> None:
        """For measurements that mean nothing when a request failed."""
        for error in self.errors:
            raise error


@dataclass(frozen=True, slots=True)
class TokenizedPrompts:
    """Prompts in token ids, and how many of them were cut to fit."""

    prompts: tuple[tuple[int, ...], ...]
    num_cut: int


def run_load(
    address: str,
    prompts: Sequence[PromptInput],
    plan: LoadPlan,
    on_done: Callable[[], None] = ignore_progress,
) -> LoadOutcome:
    """Send all prompts and wait. A request that fails has its error as its result."""
    return asyncio.run(_run(address, prompts, plan, on_done))


async def _run(
    address: str,
    prompts: Sequence[PromptInput],
    plan: LoadPlan,
    on_done: Callable[[], None],
) -> LoadOutcome:
    answers: dict[int, tuple[GenerationResult | ExspecError, float]] = {}
    waiting = iter(enumerate(prompts))
    async with AsyncClient(address, timeout=REQUEST_SECONDS, **plan.access) as client:

        async def send_until_none_is_left() -> None:
            for index, prompt in waiting:
                sent = monotonic()
                result = await _ask(client, prompt, plan.options_of(index))
                answers[index] = result, monotonic() - sent
                on_done()

        started = monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.num_in_flight, len(prompts))):
                group.create_task(send_until_none_is_left())
        seconds = monotonic() - started
    in_order = [answers[index] for index in range(len(prompts))]
    return LoadOutcome(
        tuple(result for result, _ in in_order), seconds, tuple(latency for _, latency in in_order)
    )


async def _ask(
    client: AsyncClient, prompt: PromptInput, options: GenerateOptions
) -> GenerationResult | ExspecError:
    try:
        return await client.generate(prompt, **options)
    except ExspecError as error:
        return error


def _sums(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Position by position; a list that ends early has zeros."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def tokenize_chats(client: Client, texts: Sequence[str], max_length: int) -> TokenizedPrompts:
    """Texts as the only message of a conversation each, as the cluster tokenizes them."""
    return _cut(
        [client.tokenize([ChatMessage("user", text)]).token_ids for text in texts], max_length
    )


def tokenize_texts(client: Client, texts: Sequence[str], max_length: int) -> TokenizedPrompts:
    """Bare texts, as the cluster tokenizes them."""
    return _cut([client.tokenize(text).token_ids for text in texts], max_length)


def _cut(prompts: Sequence[tuple[int, ...]], max_length: int) -> TokenizedPrompts:
    """What is too long loses its end (as in the paper's protocol)."""
    if max_length < 1:
        raise InvalidRequestError(
            f"prompts cannot be cut to {max_length} tokens", field="max_prompt_tokens"
        )
    cut = tuple(tokens[:max_length] for tokens in prompts)
    return TokenizedPrompts(cut, sum(len(tokens) > max_length for tokens in prompts))


def repeated(prompts: Sequence[tuple[int, ...]], number: int) -> tuple[tuple[int, ...], ...]:
    """`number` prompts, from the start again when they run out."""
    if not prompts:
        raise InvalidRequestError("a benchmark needs at least one prompt", field="dataset")
    endless: Iterator[tuple[int, ...]] = cycle(prompts)
    return tuple(islice(endless, number))


def totals_between(before: Totals, after: Totals) -> Totals:
    """What happened between two looks at a cluster's sums."""
    return after.since(before)
