"""Messages between coordinator and workers that come twice, late, out of order or not at all.

A reply that comes twice is one nobody waits for: the link must end or ignore it, never commit it.
"""

from __future__ import annotations

import asyncio
import random as randomness
from dataclasses import asdict

import pytest

from tests.chaos.message_faults import ODDS, Faults
from tests.chaos.message_proxy import MessageProxy, untouched
from tests.chaos.proxied_world import WORKERS_PER_ROLE, Crowd, proxied, require_no_bugs

NUM_REQUESTS = 16


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("odds", ODDS.values(), ids=list(ODDS))
async def test_outputs_are_right_whatever_happens_to_messages(seed, odds, caplog):
    random = randomness.Random(seed)
    proxies = [MessageProxy() for _ in range(2 * WORKERS_PER_ROLE)]
    registry = MessageProxy()
    async with proxied(proxies, registry) as made:
        faults = Faults(odds, random)
        for proxy in (*proxies, registry):
            proxy.tap = faults
        crowd = Crowd(made, random)
        for _ in range(NUM_REQUESTS):
            crowd.ask()
            await asyncio.sleep(0.02)
        num_right = await crowd.check()
        assert num_right  # how many is a matter of time-outs, and of how busy the machine is
        for kind, chance in asdict(odds).items():
            assert bool(faults.counts[kind]) is bool(chance)
        for proxy in (*proxies, registry):
            proxy.tap = untouched
    require_no_bugs(caplog)
