"""Real processes on tiny models; a cluster is started once and shared by the tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from exspec import Client
from exspec.cli.cluster import LocalCluster
from exspec.cli.cluster_plan import ClusterPlan
from exspec.engine.loading import ModelSettings, load_model
from exspec.engine.reference import generate_plain
from tests.e2e.forked import ForkedCluster
from tests.engine.tiny import save_tiny_model

STOP_IDS = (0, 1)


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory) -> Path:
    """A tiny target with a byte tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("target"), seed=1)


@pytest.fixture(scope="session")
def noise_dir(tmp_path_factory) -> Path:
    """A draft that agrees with the target by chance only; its head is padded further."""
    return save_tiny_model(tmp_path_factory.mktemp("noise"), seed=2, vocab_size=320)


@pytest.fixture(scope="session")
def stranger_dir(tmp_path_factory) -> Path:
    """A draft with another tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("stranger"), seed=3, tokenizer_variant="words")


@pytest.fixture(scope="session")
def plain(target_dir):
    """Plain batch-1 greedy decoding of the target, by Hugging Face's own cache and attention."""
    loaded = load_model(ModelSettings(str(target_dir), dtype="float64"))

    def decode(prompt_tokens, max_tokens, stop_token_ids=STOP_IDS):
        return generate_plain(loaded, tuple(prompt_tokens), max_tokens, tuple(stop_token_ids))

    return decode


def plan(target: Path, draft: Path | str, **options) -> ClusterPlan:
    """A float64 cluster of short sequences on one thread per process; drafts are always made."""
    settings = {
        "dtype": "float64", "max_model_len": 200, "num_threads": 1, "num_speculative_tokens": 5,
        **options,
    }  # fmt: skip
    return ClusterPlan(model=str(target), draft_model=str(draft), **settings)


@pytest.fixture(scope="session")
def running():
    """Clusters that are stopped at the end of the session, if not before."""
    clusters = list[LocalCluster]()
    yield clusters
    for cluster in clusters:
        cluster.stop()
        cluster.remove_logs()


def _started(cluster: LocalCluster, running: list[LocalCluster]) -> LocalCluster:
    running.append(cluster)
    cluster.start()
    cluster.wait_ready(120)
    return cluster


@pytest.fixture(scope="session")
def make_cluster(running, zygote):
    """Start clusters whose workers are forked."""
    return lambda cluster_plan: _started(ForkedCluster(cluster_plan, zygote), running)


@pytest.fixture(scope="session")
def make_processes(running):
    """Start clusters exactly as `exspec up` does."""
    return lambda cluster_plan: _started(LocalCluster(cluster_plan), running)


@pytest.fixture(scope="session")
def noise_cluster(make_processes, target_dir, noise_dir) -> LocalCluster:
    """One target, one draft that is nearly always wrong."""
    return make_processes(plan(target_dir, noise_dir, max_num_seqs=4))


@pytest.fixture
def client(noise_cluster):
    """A client of the shared cluster."""
    with Client(noise_cluster.address) as opened:
        yield opened
