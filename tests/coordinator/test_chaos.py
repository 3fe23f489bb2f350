"""Everything at once, drawn from a seed: requests, callers that leave, workers that come and go."""

from __future__ import annotations

import asyncio
import io
from random import Random

import pytest
from coordinator_world import World, check, world
from toy import continuation

from coordinator.scheduler.replay import replay_lines
from exspec.core.cluster import WorkerState
from exspec.core.errors import PeerError
from exspec.core.ids import Role


class Chaos:
    """Draws what happens next. One target that nothing happens to keeps requests alive."""

    def __init__(self, made: World, seed: int) -> None:
        self.made = made
        self.random = Random(seed)
        self.asked: list[tuple[asyncio.Task, tuple[int, ...], int]] = []
        self._num_workers = 0

    async def step(self) -> None:
        """One thing happens."""
        happenings = [self._ask] * 6 + [self._leave_call, self._join, self._join]
        happenings += [self._break_stream, self._kill, self._drain, self._fail_a_pass]
        await self.random.choice(happenings)()
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)

    async def _ask(self) -> None:
        prompt = tuple(self.random.randrange(5, 90) for _ in range(self.random.randrange(1, 30)))
        max_tokens = self.random.randrange(1, 60)
        k = self.random.choice([None, None, 0, 1, 7])
        task = asyncio.create_task(self.made.generate(prompt, max_tokens, k))
        self.asked.append((task, prompt, max_tokens))

    async def _leave_call(self) -> None:
        if self.asked:
            self.random.choice(self.asked)[0].cancel()

    async def _join(self) -> None:
        if len(self.made.workers) >= 6:
            return
        self._num_workers += 1
        role = self.random.choice(list(Role))
        name = f"{role.value}-{self._num_workers}"
        worker = self.made.new(role, name, num_slots=self.random.randrange(1, 5))
        await self.made.start(worker)

    def _any(self):
        return self.random.choice(self.made.workers[1:]) if self.made.workers[1:] else None

    async def _break_stream(self) -> None:
        if (worker := self._any()) is not None:
            await worker.break_stream()

    async def _kill(self) -> None:
        if (worker := self._any()) is not None:
            await self.made.forget(worker)

    async def _drain(self) -> None:
        worker = self._any()
        if worker is not None and self.made.state(worker) is WorkerState.READY:
            self.made.workers.remove(worker)
            await worker.leave()

    async def _fail_a_pass(self) -> None:
        if (worker := self._any()) is not None:
            worker.runner.failures.append(RuntimeError("drawn"))


@pytest.mark.parametrize("seed", range(4))
async def test_every_request_that_was_not_cancelled_ends_right(seed):
    trace = io.StringIO()
    async with world(trace, max_prefill_tokens=16, batch_size=3, lease_seconds=1.0) as made:
        await made.target("rock", num_slots=3)
        chaos = Chaos(made, seed)
        for _ in range(80):
            await chaos.step()
        num_checked = 0
        for task, prompt, max_tokens in chaos.asked:
            done = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done[0], asyncio.CancelledError):
                continue
            if isinstance(done[0].error, PeerError):  # unlucky five times in a row: given up
                assert done[0].tokens == continuation(prompt, max_tokens)[: len(done[0].tokens)]
                continue
            check(done[0], prompt, max_tokens)
            num_checked += 1
        assert num_checked > 10
    replay_lines(trace.getvalue().splitlines())
