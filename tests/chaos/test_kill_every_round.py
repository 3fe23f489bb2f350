"""SIGKILL of a real worker process in every round of a generation: nobody can tell from the answer.

Compared are text, tokens, finish reason, usage and log-probabilities; every other one samples.
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


SAMPLED = {
    "temperature": 0.9,
    "top_p": 0.99,
    "repetition_penalty": 1.1,
    "seed": 5,
    "logprobs": 2,
    "prompt_logprobs": 0,
}


def seen(result: GenerationResult):
    """What a client can tell of an answer.

    The last bits of a logprob depend on how many tokens share a pass.
    """
    logprobs = [
        (one.token_id, round(one.logprob, 6), [token for token, _ in one.top])
        for one in (*result.prompt_logprobs, *result.logprobs)
    ]
    return result.text, result.token_ids, result.finish_reason, result.usage, logprobs


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
async def test_the_answer_does_not_tell(make_cluster, truth, role, phase, thoroughness):
    async with kill_range(make_cluster()) as kills, AsyncClient(kills.address) as client:
        greedy = await kills.generate(client)
        assert greedy.token_ids == truth.tokens(PROMPT, NUM_TOKENS)
        assert greedy.finish_reason is FinishReason.LENGTH
        assert min(kills.num_rounds.values()) >= NUM_ROUNDS
        sampled = await kills.generate(client, **SAMPLED)
        assert len(sampled.logprobs) == NUM_TOKENS
        for number, index in enumerate(range(0, NUM_ROUNDS, thoroughness.every_round)):
            undisturbed, sampling = (greedy, {}) if number % 2 else (sampled, SAMPLED)
            struck = await kills.generate(client, Strike(role, phase, index), **sampling)
            assert seen(struck) == seen(undisturbed), f"{role.value} {phase.value} round {index}"
        await kills.check_slots()
