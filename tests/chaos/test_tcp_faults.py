"""The network between coordinator and workers fails in every way; the answers do not change."""

from __future__ import annotations

import asyncio
import random as randomness

import pytest

from tests.chaos.proxied_world import WORKERS_PER_ROLE, Crowd, proxied, require_no_bugs
from tests.chaos.tcp_proxy import TcpProxy, Weather

NUM_CHANGES = 20


@pytest.mark.usefixtures("_quick")
async def test_outputs_are_right_in_any_weather(seed, caplog):
    random = randomness.Random(seed)
    proxies = [TcpProxy() for _ in range(2 * WORKERS_PER_ROLE)]
    registry = TcpProxy()
    everywhere = [*proxies, registry]
    async with proxied(proxies, registry) as made:
        crowd = Crowd(made, random)
        for _ in range(NUM_CHANGES):
            proxy = random.choice(everywhere)
            happening = random.choice([*Weather, Weather.CLEAR, proxy.reset, proxy.vanish])
            proxy.set_weather(happening) if isinstance(happening, Weather) else happening()
            crowd.ask()
            await asyncio.sleep(0.1 * random.random())
        for proxy in everywhere:
            proxy.set_weather(Weather.CLEAR)
        assert await crowd.check() > NUM_CHANGES // 2
    require_no_bugs(caplog)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("weather", Weather, ids=lambda weather: weather.value)
async def test_one_kind_of_weather_over_one_target_of_two(weather, caplog):
    proxies = [TcpProxy() for _ in range(2 * WORKERS_PER_ROLE)]
    async with proxied(proxies, TcpProxy()) as made:
        crowd = Crowd(made, randomness.Random(1))
        for _ in range(8):
            crowd.ask()
        proxies[1].set_weather(weather)
        assert await crowd.check() == 8
        proxies[1].set_weather(Weather.CLEAR)
    require_no_bugs(caplog)
