"""Courses of events in a `policy_world`: what happens is drawn from a seed, then every request is
held against plain decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

import pytest

from coordinator.scheduler.limits import SchedulerLimits
from exspec.core.choosing import ChoiceRules, TokenLogprobs
from exspec.engine.reference import PlainRun, decode_plain, sampler_of
from tests.engine.conftest import loaded_family, make_prompts, reference_of
from tests.engine.policy_workers import Setting
from tests.engine.policy_world import Request, World
from tests.engine.tiny import VOCAB_SIZE

PROMPTS = [*make_prompts(9, seed=21), tuple(Random(5).randrange(VOCAB_SIZE) for _ in range(60))]
MAX_TOKENS = 18
NUM_AT_ONCE, NUM_REQUESTS = 4, 8
MAX_MISHAPS = 4
"""Fewer than the failures after which a sequence is given up."""


@functools.cache
def plain_run(
    family: str, prompt: tuple[int, ...], stops: tuple[int, ...], rules: ChoiceRules | None
) -> PlainRun:
    """What plain decoding gives, as far as any request goes."""
    loaded = loaded_family(family)
    sampler = sampler_of(loaded, len(prompt), rules)
    return decode_plain(loaded, prompt, MAX_TOKENS, stops, sampler)


def drawn_request(random: Random, family: str) -> Request:
    prompt = random.choice(PROMPTS)
    request = Request(prompt, random.choice([1, 2, 9, 14, MAX_TOKENS]))
    if random.random() < 0.2:
        request.stops = (random.choice(reference_of(family, prompt, MAX_TOKENS)),)
    if random.random() < 0.2:
        request.num_speculative_tokens = random.choice([0, 1, 7])
    return request


DrawRequest = Callable[[Random, str], Request]


class Course:
    """Draws what happens to a world until everything was asked, then lets it settle."""

    def __init__(self, setting: Setting, seed: int, draw: DrawRequest = drawn_request) -> None:
        self.random = Random(seed)
        self.setting = setting
        self.draw = draw
        self.world = World(setting, seed)
        self.num_mishaps = 0

    def run(self) -> World:
        for _ in range(NUM_AT_ONCE):
            self._ask()
        while len(self.world.requests) < NUM_REQUESTS:
            self._happen()
        self.world.settle()
        self._judge()
        return self.world

    def _happen(self) -> None:
        happenings = (self._step, self._ask, self._lose_patience, self._cancel, self._mishap)
        (happen,) = self.random.choices(happenings, (75, 10, 8, 2, 2))
        happen()
        for member in self.world.members.values():
            if self.setting.num_ahead and member.drafter is not None and not member.inbox:
                member.drafter.draft_ahead()

    def _step(self) -> None:
        if not self.world.step():
            self._ask()

    def _ask(self) -> None:
        self.world.ask(self.draw(self.random, self.setting.family))

    def _lose_patience(self) -> None:
        if self.world.patience:
            self.world.run_out_of_patience()

    def _cancel(self) -> None:
        if self.world.requests:
            self.world.cancel(self.random.choice(list(self.world.requests)))

    def _mishap(self) -> None:
        if self.num_mishaps < MAX_MISHAPS:
            self.num_mishaps += 1
            mishap = self.random.choice([self.world.lose, self.world.lose, self.world.drain])
            mishap(self.random.choice(list(self.world.members.values())))

    def _judge(self) -> None:
        for name, request in self.world.requests.items():
            run = plain_run(self.setting.family, request.prompt, request.stops, request.rules)
            num_tokens = len(request.tokens) if request.is_cancelled else request.max_tokens
            assert tuple(request.tokens) == run.tokens[:num_tokens], name
            is_stuck = run.is_stuck and num_tokens > len(run.tokens)
            assert request.is_cancelled or request.is_completed is not is_stuck, (name, request.end)
            assert_same(request.logprobs, run.logprobs[:num_tokens])
            assert_same(request.prompt_logprobs, run.prompt_logprobs if request.tokens else ())


def assert_same(found: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    """The same tokens in the same order; numbers to a millionth."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-6)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        values = [value for _, value in other.top]
        assert [value for _, value in one.top] == pytest.approx(values, abs=1e-6)


def seed_of(setting: Setting) -> int:
    """Each setting has a course of its own."""
    return crc32(repr(setting).encode())


def limits(window: int, in_flight: int) -> SchedulerLimits:
    return SchedulerLimits(
        batch_size=2,
        window_size=window,
        max_batches_in_flight=in_flight,
        max_prefill_tokens=24,
        max_mixed_prefill_tokens=11,
    )
