"""One pair of models for all chaos tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.cluster import ChaosCluster, make_plan
from tests.chaos.models import Pair, Truth, save_pair

# The coordinator's tests have a whole cluster in one event loop, and the workers' a toy model.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("coordinator", "workers")]


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """Kill in every `every_round`-th round; draw `num_seeds` courses of everything drawn."""

    every_round: int
    num_seeds: int


THOROUGHNESS = {"brief": Thoroughness(8, 1), "full": Thoroughness(1, 12)}


def pytest_generate_tests(metafunc):
    """Tests that ask for a `seed` get as many as the run is thorough."""
    chosen = THOROUGHNESS[metafunc.config.getoption("--chaos")]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(chosen.num_seeds))


@pytest.fixture
def thoroughness(request) -> Thoroughness:
    """As the option says."""
    return THOROUGHNESS[request.config.getoption("--chaos")]


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Pair:
    """The tiny models."""
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def truth(pair) -> Truth:
    """Plain decoding of the target."""
    return Truth(pair)


@pytest.fixture
def make_cluster(pair, zygote, tmp_path):
    """A cluster that was not started; `changes` are its plan's."""

    def make(**changes) -> ChaosCluster:
        cluster = ChaosCluster(make_plan(pair, tmp_path, **changes), zygote)
        cluster.preload()
        return cluster

    return make


@pytest.fixture
def _quick(monkeypatch):
    """Waits of coordinator and workers that are too long for tests in one process."""
    from coordinator import links, roles, service
    from exspec.wire import registration

    monkeypatch.setattr(links, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(roles, "LONGEST_DRAFT_BACKOFF_SECONDS", 0.5)
    monkeypatch.setattr(roles, "LONGEST_TARGET_BACKOFF_SECONDS", 0.5)
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(roles, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(registration, "CALL_SECONDS", 0.5)
