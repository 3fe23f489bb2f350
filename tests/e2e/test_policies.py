"""Policies, windows and rules of speculation with real processes: clients see plain decoding."""

from __future__ import annotations

import signal
import threading

import pytest

from exspec import Client
from tests.e2e.conftest import plan

PROMPTS = ("a", "The quick brown fox", "x" * 90, "1 2 3 1 2 3 1 2", "z", "Zwölf 🦊", "hello", "bye")
LENGTH = 120

CLUSTERS = {
    "window": {
        "policy": "exspec",
        "batch_size": 2,
        "window_size": 5,
        "num_speculative_tokens": "auto",
        "kv_layout": "padded",
    },
    "lockstep": {
        "policy": "eqspec",
        "batch_size": 3,
        "num_speculative_tokens": "[[1,2,4],[3,8,1]]",
        "kv_layout": "padded",
        "coordinator_flags": ("--max-batches-in-flight", "1", "--max-mixed-prefill-tokens", "16"),
    },
    "paper": {
        "policy": "exspec-paper",
        "batch_size": 2,
        "window_size": 4,
        "num_speculative_tokens": 3,
        "coordinator_flags": ("--draft-timeout-seconds", "600"),
        "draft_flags": ("--draft-ahead", "4"),
    },
}


@pytest.fixture(scope="module")
def clusters(make_cluster, target_dir, noise_dir):
    """Each is started when it is first asked for, and stopped after the module's tests."""
    started = {}

    def get(name):
        if name not in started:
            started[name] = make_cluster(plan(target_dir, noise_dir, **CLUSTERS[name]))
        return started[name]

    yield get
    for cluster in started.values():
        cluster.stop()


@pytest.mark.parametrize("name", CLUSTERS)
def test_tokens_are_those_of_plain_decoding(clusters, plain, name):
    settings = CLUSTERS[name]
    with Client(clusters(name).address) as client:
        results = client.generate_batch(PROMPTS, max_tokens=24, ignore_eos=True)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert result.token_ids == plain(client.tokenize(prompt).token_ids, 24, ())
        status = client.cluster_status()
        assert status.policy == settings["policy"]
        assert status.speculation == str(settings["num_speculative_tokens"])
        assert status.window_size == settings.get("window_size", settings["batch_size"])
        assert status.totals.num_draft_tokens > 0
        assert status.totals.rows_per_round <= settings["batch_size"]


def test_a_draft_that_is_stopped_is_not_waited_for(clusters, plain):
    """Nobody gives it up (its time is 600 seconds), and nobody waits for it."""
    prompt = "a request that is under way"
    cluster = clusters("paper")
    with Client(cluster.address) as client:
        expected = plain(client.tokenize(prompt).token_ids, LENGTH, ())
        before = client.cluster_status().totals
        with client.stream(prompt, max_tokens=LENGTH, ignore_eos=True) as stream:
            next(stream.text_deltas())
            cluster.kill("draft-0", signal.SIGSTOP)
            assert stream.final().token_ids == expected
        after = client.cluster_status().totals
        assert after.num_overdue_drafts > before.num_overdue_drafts
        assert after.num_draft_failures == before.num_draft_failures
        cluster.kill("draft-0", signal.SIGCONT)
        give_up = threading.Event()
        timer = threading.Timer(60, give_up.set)
        timer.start()
        num_drafted = 0
        while not num_drafted and not give_up.is_set():  # its late answer comes any moment
            again = client.generate(prompt, max_tokens=LENGTH, ignore_eos=True)
            assert again.token_ids == expected
            num_drafted = again.speculation.num_draft_tokens
        timer.cancel()
        assert num_drafted > 0
