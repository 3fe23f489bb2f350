"""The fuzzer's own judgement, and a short run of it against a live cluster."""

from __future__ import annotations

from random import Random

import grpc
import pytest

from exspec.core.ids import Role
from exspec.v1 import generation_pb2, target_pb2
from tests.chaos.fuzz import COORDINATOR_FLAGS, Fuzz
from tests.chaos.fuzz_calls import (
    LEFT,
    Ending,
    coordinator_methods,
    problem_of,
    worker_methods,
)
from tests.chaos.fuzz_messages import Fuzzer

CODE = grpc.StatusCode
GENERATE = next(m for m in coordinator_methods() if m.path.endswith("/Generate"))
CHECK = next(m for m in coordinator_methods() if m.path.endswith("/Check"))


def test_every_rpc_of_every_service_is_called():
    paths = {method.path for method in coordinator_methods()}
    for role in Role:
        paths |= {method.path for method in worker_methods(role)}
    services = {path.split("/")[1].rpartition(".")[2] for path in paths}
    assert services == {
        "GenerationService", "RegistryService", "AdminService", "TargetService", "DraftService",
        "Health",
    }  # fmt: skip
    assert {"Generate", "GenerateBatch", "Register", "Verify", "Draft", "Watch"} <= {
        path.rpartition("/")[2] for path in paths
    }


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        (GENERATE, LEFT),
        (GENERATE, Ending(CODE.OK, has_info=False)),
        (GENERATE, Ending(CODE.INVALID_ARGUMENT, has_info=True)),
        (CHECK, Ending(CODE.NOT_FOUND, has_info=False)),
    ],
)
def test_ends_that_are_right(method, ending):
    assert problem_of(method, [b""], ending) is None


@pytest.mark.parametrize(
    "ending",
    [
        Ending(CODE.UNKNOWN, has_info=False),
        Ending(CODE.INTERNAL, has_info=True),
        Ending(CODE.INVALID_ARGUMENT, has_info=False),
        Ending(CODE.UNAVAILABLE, has_info=False),
        Ending(CODE.DEADLINE_EXCEEDED, has_info=False),
        Ending(CODE.RESOURCE_EXHAUSTED, has_info=False),
    ],
)
def test_ends_that_are_findings(ending):
    assert problem_of(GENERATE, [b""], ending) is not None


def test_a_message_may_be_too_large():
    too_large = [bytes(5 * 2**20)]
    assert problem_of(GENERATE, too_large, Ending(CODE.RESOURCE_EXHAUSTED, has_info=False)) is None


def test_messages_are_drawn_from_the_seed_and_are_of_all_kinds():
    descriptor = generation_pb2.GenerateRequest.DESCRIPTOR
    drawn = [Fuzzer(Random(seed)).draw(descriptor) for seed in range(300)]
    assert drawn == [Fuzzer(Random(seed)).draw(descriptor) for seed in range(300)]
    parsed = 0
    for raw in drawn:
        try:
            generation_pb2.GenerateRequest.FromString(raw)
        except Exception:  # noqa: BLE001 - upb's own class
            continue
        parsed += 1
    assert 100 < parsed < 300


def test_lists_can_be_very_long():
    longest = 0
    fuzzer = Fuzzer(Random(1))
    for _ in range(60):
        message = target_pb2.VerifyEntry()
        fuzzer._fill(message, 1.0)
        longest = max(longest, len(message.tokens))
    assert longest >= 100_000


@pytest.mark.timeout(600)
async def test_nonsense_harms_nobody(make_cluster, truth, seed):
    async with make_cluster(coordinator_flags=COORDINATOR_FLAGS) as cluster:
        findings = await Fuzz(cluster, truth, seed).run(3)
    assert findings.problems == {}
    assert findings.num_canaries > findings.num_canaries_refused
