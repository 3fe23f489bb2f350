"""Everything at once, drawn from a seed: requests, callers that leave, workers that come, go, hang
and answer late, under every policy. The output is the truth, and the trace replays.
"""

from __future__ import annotations

import asyncio
import io
import logging
from dataclasses import replace
from random import Random

import pytest
from coordinator_world import World, check, check_logprobs, request, world
from fake_worker import FakeWorker
from toy import continuation

from coordinator.scheduler.replay import replay_lines
from exspec.core.choosing import ChoiceRules
from exspec.core.cluster import WorkerState
from exspec.core.errors import PeerError
from exspec.core.ids import Role

MAX_WORKERS = 7


class Chaos:
    """Draws what happens next. One target that nothing happens to keeps requests alive."""

    def __init__(self, made: World, seed: int) -> None:
        self.made = made
        self.random = Random(seed)
        self.asked: list[tuple[asyncio.Task, tuple[int, ...], int, ChoiceRules]] = []
        self._num_workers = 0
        made.patience.hold()

    async def step(self) -> None:
        """One thing happens."""
        happenings = [self._ask] * 6 + [self._leave_call, self._join, self._join]
        happenings += [self._break_stream, self._kill, self._drain, self._fail_a_pass]
        happenings += [self._hang, self._hang, self._lose_patience, self._lose_patience]
        happenings += [self._let_go]
        await self.random.choice(happenings)()
        for _ in range(self.random.randrange(8)):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Nothing more happens; workers that hang go on."""
        await self._let_go()
        self.made.patience.run_out()

    async def _ask(self) -> None:
        prompt = tuple(self.random.randrange(5, 90) for _ in range(self.random.randrange(1, 30)))
        max_tokens = self.random.randrange(1, 60)
        k = self.random.choice([None, None, None, 0, 1, 7])
        seed, num_logprobs = self.random.randrange(9), self.random.choice([None, None, 1])
        sampling = {"temperature": self.random.choice([0.0, 0.5, 0.9]), "seed": seed}
        sampling["frequency_penalty"] = self.random.choice([0.0, 1.0])
        reported = {"logprobs": num_logprobs, "prompt_logprobs": num_logprobs}
        asked = request(prompt, max_tokens, k, **sampling, **reported)
        reported = {f"num_{name}": number for name, number in reported.items()}
        rules = ChoiceRules(len(prompt), **sampling, **reported)
        asked = replace(asked, priority=self.random.choice([0, 0, 0, -1, 2]))
        self.asked.append((asyncio.create_task(self.made.ask(asked)), prompt, max_tokens, rules))

    async def _leave_call(self) -> None:
        if self.asked:
            self.random.choice(self.asked)[0].cancel()

    async def _join(self) -> None:
        if len(self.made.workers) >= MAX_WORKERS:
            return
        self._num_workers += 1
        role = self.random.choice(list(Role))
        worker = self.made.new(
            role,
            f"{role.value}-{self._num_workers}",
            num_slots=self.random.randrange(1, 7),
            kv_layout=self.random.choice(["slots", "padded"]),
            num_ahead=self.random.choice([0, 3]),
        )
        await self.made.start(worker)

    def _any(self, *roles: Role) -> FakeWorker | None:
        workers = [worker for worker in self.made.workers[1:] if worker.role in roles]
        return self.random.choice(workers) if workers else None

    async def _break_stream(self) -> None:
        if (worker := self._any(*Role)) is not None:
            await worker.break_stream()

    async def _kill(self) -> None:
        if (worker := self._any(*Role)) is not None:
            await self.made.forget(worker)

    async def _drain(self) -> None:
        worker = self._any(*Role)
        if worker is not None and self.made.state(worker) is WorkerState.READY:
            worker.runner.gate.set()
            self.made.workers.remove(worker)
            await worker.leave()

    async def _fail_a_pass(self) -> None:
        if (worker := self._any(*Role)) is not None:
            worker.runner.failures.append(RuntimeError("drawn"))

    async def _hang(self) -> None:
        if (worker := self._any(Role.DRAFT)) is not None:
            worker.runner.gate.clear()

    async def _let_go(self) -> None:
        for worker in self.made.workers:
            worker.runner.gate.set()

    async def _lose_patience(self) -> None:
        self.made.patience.run_out()


SETTINGS = {
    "default": {"batch_size": 3},
    "auto": {"batch_size": 3, "num_speculative_tokens": "auto"},
    "window": {"batch_size": 2, "window_size": 4, "num_speculative_tokens": "auto:6"},
    "one-by-one": {"batch_size": 1, "window_size": 4, "max_batches_in_flight": 3},
    "table": {"window_size": 4, "batch_size": 2, "num_speculative_tokens": "[[1,1,5],[2,4,2]]"},
    "eqspec": {"policy": "eqspec", "batch_size": 3, "num_speculative_tokens": "auto"},
    "static": {"policy": "eqspec-static", "batch_size": 3, "max_batches_in_flight": 1},
    "paper": {"policy": "exspec-paper", "batch_size": 2, "window_size": 5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("seed", range(2))
async def test_every_request_that_was_not_cancelled_ends_right(seed, settings, caplog):
    trace = io.StringIO()
    limits = {"max_prefill_tokens": 16, "max_mixed_prefill_tokens": 5, "lease_seconds": 1.0}
    async with world(trace, **{**limits, **settings}) as made:
        await made.target("rock", num_slots=3)
        chaos = Chaos(made, seed)
        for _ in range(90):
            await chaos.step()
        await chaos.end()
        num_checked = 0
        for task, prompt, max_tokens, rules in chaos.asked:
            done = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done[0], asyncio.CancelledError):
                continue
            if isinstance(done[0].error, PeerError):  # unlucky five times in a row: given up
                truth = continuation(prompt, max_tokens, rules=rules)
                assert done[0].tokens == truth[: len(done[0].tokens)]
                continue
            check(done[0], prompt, max_tokens, rules)
            check_logprobs(done[0], prompt, rules)
            num_checked += 1
        assert num_checked > 10
    replay_lines(trace.getvalue().splitlines())
    # A bug of ours is caught and logged where it would end a link; passes were made to fail.
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert [message for message in errors if "_failed rows=" not in message] == []
