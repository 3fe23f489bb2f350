"""The coordinator and real worker services in one event loop, with a proxy on every way.

Toy models stand behind the workers, so that hundreds of faults cost seconds and whatever a wrong
token would depend on is checked at every pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any, Protocol

import pytest
from coordinator_world import Answer, World, request, world
from toy import continuation

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import (
    CapacityError,
    ExspecError,
    PeerError,
)
from exspec.core.ids import Role

WORKERS_PER_ROLE = 2
REQUEST_SECONDS = 60.0
"""Bound of one request, whatever happens."""
LIMITS: dict[str, Any] = {
    "batch_size": 3,
    "max_prefill_tokens": 16,
    "lease_seconds": 1.0,
    "draft_timeout_seconds": 0.3,
    "target_timeout_seconds": 0.5,
    "unavailable_seconds": 10.0,
}
GIVEN_UP = (PeerError, CapacityError)
"""How a request may end that found no worker, or lost too many."""


class Proxy(Protocol):
    """What the two kinds of proxies have in common."""

    upstream: str | None
    address: str

    async def start(self) -> str: ...
    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def proxied(
    workers: Sequence[Proxy], registry: Proxy, **settings: Any
) -> AsyncIterator[World]:
    """A world whose workers are reached, and reach the coordinator, through these proxies only.

    Drafts and targets take turns. At the end nothing may be left anywhere.
    """
    async with contextlib.AsyncExitStack() as stack:
        for proxy in (registry, *workers):
            await proxy.start()
            stack.push_async_callback(proxy.close)
        made = await stack.enter_async_context(world(**{**LIMITS, **settings}))
        registry.upstream = made.address
        for index, proxy in enumerate(workers):
            role = tuple(Role)[index % 2]
            worker = made.new(role, f"{role.value}-{index}", num_slots=4)
            await worker.listen()
            proxy.upstream = worker.address
            worker.address = proxy.address
            worker.register(registry.address)
        await made.bell.until(lambda: made.parts.pools.has_target, 30)
        yield made


class Crowd:
    """Requests drawn from a seed, and what became of them."""

    def __init__(self, made: World, random: Random) -> None:
        self._made = made
        self._random = random
        self._asked: list[tuple[asyncio.Task[Answer], ChoiceRules, tuple[int, ...], int]] = []

    def ask(self) -> None:
        """One more request."""
        random = self._random
        prompt = tuple(random.randrange(5, 90) for _ in range(random.randrange(1, 40)))
        max_tokens = random.randrange(1, 50)
        sampling = {"temperature": random.choice([0.0, 0.5, 0.9]), "seed": random.randrange(9)}
        asked = request(prompt, max_tokens, random.choice([None, None, 0, 7]), **sampling)
        rules = ChoiceRules(len(prompt), **sampling)
        task = asyncio.create_task(self._made.ask(asked))
        self._asked.append((task, rules, prompt, max_tokens))

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return sum(not task.done() for task, *_ in self._asked)

    async def check(self) -> int:
        """Each ends right, or after a right beginning with a typed error; how many right."""
        num_right = 0
        for task, rules, prompt, max_tokens in self._asked:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = await task
            truth = continuation(prompt, max_tokens, rules=rules)
            assert answer.tokens == truth[: len(answer.tokens)]
            if answer.error is None:
                assert answer.tokens == truth
                assert answer.completed is not None
                num_right += 1
            else:
                require_given_up(answer.error)
        return num_right


def require_given_up(error: ExspecError) -> None:
    """Losing workers may end a request, but not as somebody's bug."""
    assert isinstance(error, GIVEN_UP), repr(error)


def require_no_bugs(caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours that ended no request is caught and logged.

    gRPC's poller may look once more at the event loop of a test that is over; that is its own.
    """
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert [error for error in errors if "PollerCompletionQueue" not in error] == []
