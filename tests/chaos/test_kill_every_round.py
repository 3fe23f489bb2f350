"""SIGKILL of a real worker process in every round of a generation: nobody can tell from the answer.

Compared are text, tokens, finish reason and usage; exspec has no log-probabilities yet.
`make test` takes every eighth round, `pytest tests/chaos --chaos full` all of them: 160 kills.
"""

from __future__ import annotations

import pytest

from exspec.client import AsyncClient
from exspec.client.results import GenerationResult
from exspec.core.acceptance import FinishReason
from exspec.core.ids import Role
from tests.chaos.kills import NUM_TOKENS, PROMPT, Phase, Strike, kill_range

NUM_ROUNDS = 40


def seen(result: GenerationResult):
    """What a client can tell of an answer."""
    return result.text, result.token_ids, result.finish_reason, result.usage


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
async def test_the_answer_does_not_tell(make_cluster, truth, role, phase, thoroughness):
    async with kill_range(make_cluster()) as kills, AsyncClient(kills.address) as client:
        undisturbed = await kills.generate(client)
        assert undisturbed.token_ids == truth.tokens(PROMPT, NUM_TOKENS)
        assert undisturbed.finish_reason is FinishReason.LENGTH
        assert min(kills.num_rounds.values()) >= NUM_ROUNDS
        for index in range(0, NUM_ROUNDS, thoroughness.every_round):
            struck = await kills.generate(client, Strike(role, phase, index))
            assert seen(struck) == seen(undisturbed), f"{role.value} {phase.value} round {index}"
        await kills.check_slots()
