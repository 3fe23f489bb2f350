"""The clients of a soak: most are coroutines of one loop, some are threads with blocking clients.

Each asks again as soon as it was answered. What a request comes to is told to the tally.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

from exspec.client import AsyncClient, Client
from exspec.client.results import GenerationResult
from exspec.core.errors import ExspecError
from exspec.runtime.clock import monotonic
from tests.chaos.soak_orders import FORBIDDEN, Answer, Catalog, Kind, Order, Verdict

REQUEST_SECONDS = 60.0
"""A client's own deadline: nothing but a hang takes that long."""
LOST_SECONDS = 2 * REQUEST_SECONDS
MAX_RETRIES = 6
"""Enough for a coordinator to come back, so that what it lost is resumed and not given up."""
BLOCKING_SHARE = 8
"""One of so many clients is a thread."""
CLIENTS_PER_CHANNEL = 8

Answers = Sequence[Answer | ExspecError]


@dataclass
class Tally:
    """What became of all requests. Changed under its lock, from any thread."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    kinds: Counter[Kind] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    problems: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    num_tokens: int = 0
    longest_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, catalog: Catalog, order: Order, answers: Answers, seconds: float) -> None:
        """A call ended."""
        with self.lock:
            self.kinds[order.kind] += 1
            self.longest_seconds = max(self.longest_seconds, seconds)
            for index, answer in enumerate(answers):
                verdict = catalog.judge(order, index, answer)
                self.verdicts[verdict] += 1
                if isinstance(answer, ExspecError):
                    self.errors[type(answer).__name__] += 1
                else:
                    self.num_tokens += len(answer.tokens)
                if verdict in FORBIDDEN:
                    self.problems.append(
                        f"{verdict.value}: {order.kind.value} {order.options} "
                        f"prompt={order.samples[index].prompt_tokens} got={answer!r}"
                    )

    def note_lost(self, order: Order, why: str) -> None:
        """A call did not end, or ended with something that is no error of ours."""
        with self.lock:
            self.verdicts[Verdict.LOST] += len(order.samples)
            self.problems.append(f"lost: {order.kind.value} {order.options} {why}")

    @property
    def num_requests(self) -> int:
        """Prompts that were asked for."""
        return self.verdicts.total()

    @property
    def num_forbidden(self) -> int:
        """Ends that may not happen."""
        return sum(self.verdicts[verdict] for verdict in FORBIDDEN)


class Clients:
    """All of them. `run` until `stop`; then each ends with the call it is in."""

    def __init__(self, address: str, num_clients: int, catalog: Catalog, seed: int) -> None:
        self._address = address
        self._num_clients = num_clients
        self._catalog = catalog
        self._seed = seed
        self._is_stopped = threading.Event()
        self.tally = Tally()

    def stop(self) -> None:
        """No new calls."""
        self._is_stopped.set()

    async def run(self) -> None:
        """Until all have ended."""
        num_blocking = self._num_clients // BLOCKING_SHARE
        num_async = self._num_clients - num_blocking
        channels = [
            AsyncClient(self._address, max_retries=MAX_RETRIES)
            for _ in range(-(-num_async // CLIENTS_PER_CHANNEL))
        ]
        with ThreadPoolExecutor(num_blocking or 1) as threads:
            loop = asyncio.get_running_loop()
            blocking = [
                loop.run_in_executor(threads, self._run_blocking, index)
                for index in range(num_blocking)
            ]
            await asyncio.gather(
                *blocking,
                *(
                    self._run_one(channels[index // CLIENTS_PER_CHANNEL], index)
                    for index in range(num_async)
                ),
            )
        for channel in channels:
            await channel.close()

    async def _run_one(self, client: AsyncClient, index: int) -> None:
        random = Random(f"{self._seed}/async/{index}")
        while not self._is_stopped.is_set():
            order = self._catalog.draw(random)
            started = monotonic()
            try:
                async with asyncio.timeout(LOST_SECONDS):
                    answers = await _ask(client, order)
            except ExspecError as error:
                answers = [error] * len(order.samples)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self.tally.note_lost(order, repr(error))
                continue
            self.tally.note(self._catalog, order, answers, monotonic() - started)

    def _run_blocking(self, index: int) -> None:
        random = Random(f"{self._seed}/blocking/{index}")
        with Client(self._address, max_retries=MAX_RETRIES) as client:
            while not self._is_stopped.is_set():
                order = self._catalog.draw(random)
                started = monotonic()
                try:
                    answers = _ask_blocking(client, order)
                except ExspecError as error:
                    answers = [error] * len(order.samples)
                except Exception as error:  # noqa: BLE001 - as above
                    self.tally.note_lost(order, repr(error))
                    continue
                self.tally.note(self._catalog, order, answers, monotonic() - started)


async def _ask(client: AsyncClient, order: Order) -> Answers:
    prompt, timeout = order.samples[0].prompt, _timeout(order)
    if order.kind is Kind.BATCH:
        prompts = [sample.prompt for sample in order.samples]
        return _answers(await client.generate_batch(prompts, timeout=timeout, **order.options))
    if order.kind not in (Kind.STREAM, Kind.CANCEL):
        return _answers([await client.generate(prompt, timeout=timeout, **order.options)])
    num_events = 0
    async with client.stream(prompt, timeout=timeout, **order.options) as stream:
        async for _ in stream:
            num_events += 1
            if order.kind is Kind.CANCEL and num_events > order.patience:
                return [Answer(stream.token_ids, stream.text)]
        return _answers([await stream.final()])


def _ask_blocking(client: Client, order: Order) -> Answers:
    prompt, timeout = order.samples[0].prompt, _timeout(order)
    if order.kind is Kind.BATCH:
        prompts = [sample.prompt for sample in order.samples]
        return _answers(client.generate_batch(prompts, timeout=timeout, **order.options))
    if order.kind not in (Kind.STREAM, Kind.CANCEL):
        return _answers([client.generate(prompt, timeout=timeout, **order.options)])
    with client.stream(prompt, timeout=timeout, **order.options) as stream:
        for num_events, _ in enumerate(stream):
            if order.kind is Kind.CANCEL and num_events >= order.patience:
                return [Answer(stream.token_ids, stream.text)]
        return _answers([stream.final()])


def _timeout(order: Order) -> float:
    return order.patience if order.kind is Kind.DEADLINE else REQUEST_SECONDS


def _answers(results: Sequence[GenerationResult | ExspecError]) -> Answers:
    return [
        result
        if isinstance(result, ExspecError)
        else Answer(
            result.token_ids, result.text, result.finish_reason, result.usage.num_prompt_tokens
        )
        for result in results
    ]
