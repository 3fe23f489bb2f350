"""What `exspec demo` runs and compares. The judge is plain batch-1 decoding in this process.

Prints nothing itself; loads torch only for the judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from exspec.client import Client, GenerationResult
from exspec.core.errors import ExspecError
from exspec.core.generation import ChatMessage, Delta
from exspec.runtime.clock import monotonic

if TYPE_CHECKING:
    from exspec.cli.cluster import LocalCluster

_STORY = (
    "The lighthouse keeper had not spoken to anyone for three weeks when the small boat came in. "
    "It carried two people, a box of onions and a letter that had been opened and closed again. "
    "He put the kettle on, because that is what one does, and looked at the sea, which was as grey "
    "as slate and quite still. The older of the two said that the letter was for him, and that the "
    "onions were for everybody. Nobody mentioned the storm, although all of them had seen it, far "
    "out, like a wall that somebody had begun to build and then forgotten."
)
PROMPTS = (
    "Why is the sky blue?",
    "Name three fruits.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Count from one to twenty in words.",
    "Explain to a child, in two or three sentences, what a computer does when it runs a program.",
    f"Summarize this story in one sentence.\n\n{_STORY}",
)


WARM_UP_TOKENS = 8


class Teller(Protocol):
    """Who is told what goes on."""

    def step(self, line: str) -> None:
        """One more step is taken."""
        ...

    def piece(self, text: str) -> None:
        """A piece of the first answer."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts, one way. Seconds from the first request to the last answer."""

    results: tuple[GenerationResult, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The prompts with speculation and without, on one cluster."""

    speculative: Pass
    plain: Pass


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, or a total. `difference` says where plain decoding was left; empty: nowhere."""

    name: str
    num_prompt_tokens: int
    num_tokens: int
    num_rounds: int
    acceptance_length: float
    speculative_tokens_per_second: float
    plain_tokens_per_second: float
    is_identical: bool
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `exspec demo` found: each prompt on its own, all of them so, and all at once."""

    rows: tuple[Row, ...]
    total: Row
    total_at_once: Row

    @property
    def is_identical(self) -> bool:
        """Whether every answer is, token for token, that of plain decoding."""
        return all(row.is_identical for row in self.rows)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "total": asdict(self.total),
            "total_at_once": asdict(self.total_at_once),
            "is_identical": self.is_identical,
        }


def compare(cluster: LocalCluster, max_tokens: int, teller: Teller) -> Comparison:
    """Run the prompts with speculation, without, and plainly in this process."""
    chats = [(ChatMessage("user", prompt),) for prompt in PROMPTS]
    alone, together = [[chat] for chat in chats], [chats]
    with cluster, Client(cluster.address) as client:
        prompt_tokens = [client.tokenize(chat).token_ids for chat in chats]
        stop_token_ids = client.list_models()[0].stop_token_ids
        # First passes of a shape are slow; neither way of decoding is to pay for the other's.
        _run(client, together, min(WARM_UP_TOKENS, max_tokens), None, None)
        teller.step(f"\n{len(PROMPTS)} prompts, one at a time, with speculation; the first live:\n")
        teller.step(f"> {PROMPTS[0]}")
        speculative = _run(client, alone, max_tokens, None, teller)
        _tell_others(speculative, teller)
        teller.step("the same prompts on the same cluster without speculation …")
        single = Pair(speculative, _run(client, alone, max_tokens, 0, None))
        teller.step("the same prompts all at once, with speculation and without …")
        at_once = Pair(
            _run(client, together, max_tokens, None, None),
            _run(client, together, max_tokens, 0, None),
        )
    teller.step("the same prompts in this process, by plain decoding …")
    judged = _judge(prompt_tokens, max_tokens, stop_token_ids, cluster.plan.model)
    rows = tuple(_row(index, single, at_once, tokens) for index, tokens in enumerate(judged))
    is_identical = all(row.is_identical for row in rows)
    return Comparison(
        rows,
        _total("one at a time", single, is_identical),
        _total("all at once", at_once, is_identical),
    )


def _run(
    client: Client,
    groups: Sequence[Sequence[Sequence[ChatMessage]]],
    max_tokens: int,
    num_speculative_tokens: int | None,
    teller: Teller | None,
) -> Pass:
    """One group after another, each all at once; `teller` hears the first answer as it comes."""
    results: list[GenerationResult] = []
    start = monotonic()
    for chats in groups:
        with client.stream_batch(
            chats, max_tokens=max_tokens, num_speculative_tokens=num_speculative_tokens
        ) as stream:
            for index, event in stream:
                is_first = not results and index == 0
                if teller is not None and is_first and isinstance(event, Delta):
                    teller.piece(event.text)
            results += [_result(item) for item in stream.final()]
    return Pass(tuple(results), monotonic() - start)


def _result(item: GenerationResult | ExspecError) -> GenerationResult:
    if isinstance(item, ExspecError):
        raise item
    return item


def _tell_others(speculative: Pass, teller: Teller) -> None:
    teller.step("\n")
    for prompt, result in list(zip(PROMPTS, speculative.results, strict=True))[1:]:
        teller.step(f"> {prompt.splitlines()[0]}\n{result.text.strip()}\n")


def _judge(
    prompt_tokens: Sequence[Sequence[int]],
    max_tokens: int,
    stop_token_ids: Sequence[int],
    model: str,
) -> list[tuple[int, ...]]:
    """Plain batch-1 greedy decoding, with the modelling library's own cache and attention."""
    from exspec.engine.loading import ModelSettings, load_model
    from exspec.engine.reference import generate_plain

    loaded = load_model(ModelSettings(model=model))
    return [generate_plain(loaded, tokens, max_tokens, stop_token_ids) for tokens in prompt_tokens]


def _row(index: int, single: Pair, at_once: Pair, judged: tuple[int, ...]) -> Row:
    """One prompt: the numbers of its own run, what differs in any."""
    ways = (
        ("with speculation", single.speculative),
        ("without drafts", single.plain),
        ("with speculation among all", at_once.speculative),
        ("without drafts among all", at_once.plain),
    )
    answers = [(way, one.results[index].token_ids) for way, one in ways]
    differences = [
        f"{way}, it differs from plain decoding at token {first_difference(tokens, judged)}"
        for way, tokens in answers
        if tokens != judged
    ]
    speculative, plain = single.speculative.results[index], single.plain.results[index]
    return Row(
        name=PROMPTS[index].splitlines()[0],
        num_prompt_tokens=speculative.usage.num_prompt_tokens,
        num_tokens=len(speculative.token_ids),
        num_rounds=speculative.speculation.num_rounds,
        acceptance_length=speculative.speculation.acceptance_length,
        speculative_tokens_per_second=_rate(speculative, speculative.timings.total_seconds),
        plain_tokens_per_second=_rate(plain, plain.timings.total_seconds),
        is_identical=not differences,
        difference="; ".join(differences),
    )


def _total(name: str, pair: Pair, is_identical: bool) -> Row:
    results = pair.speculative.results
    num_rounds = sum(result.speculation.num_rounds for result in results)
    accepted = sum(result.speculation.num_accepted_tokens for result in results)
    return Row(
        name=name,
        num_prompt_tokens=sum(result.usage.num_prompt_tokens for result in results),
        num_tokens=sum(len(result.token_ids) for result in results),
        num_rounds=num_rounds,
        acceptance_length=1 + accepted / num_rounds if num_rounds else 0.0,
        speculative_tokens_per_second=_pass_rate(pair.speculative),
        plain_tokens_per_second=_pass_rate(pair.plain),
        is_identical=is_identical,
    )


def first_difference(tokens: Sequence[int], judged: Sequence[int]) -> int:
    """Index of the first token that is not the same in both."""
    for index, (token, other) in enumerate(zip(tokens, judged, strict=False)):
        if token != other:
            return index
    return min(len(tokens), len(judged))


def _rate(result: GenerationResult, seconds: float) -> float:
    return len(result.token_ids) / seconds if seconds > 0 else 0.0


def _pass_rate(one: Pass) -> float:
    return sum(len(result.token_ids) for result in one.results) / one.seconds
