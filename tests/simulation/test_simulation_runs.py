"""Whole runs of the real scheduler against sums done by hand; and workers that come and go."""

from __future__ import annotations

import pytest

from coordinator.scheduler.policies import POLICIES
from coordinator.simulation.plan import Change, ChangeKind, Cluster
from coordinator.simulation.simulator import simulate
from coordinator.simulation.workload import TraceEntry, Workload
from exspec.core.errors import InvalidRequestError
from tests.simulation.simulation_plans import DRAFT, VERIFY, WIRE, flat_costs, plan_of

PREFILL = VERIFY + 2 * WIRE
CYCLE = DRAFT + VERIFY + 4 * WIRE


def test_a_round_is_a_draft_a_verify_and_four_times_the_wire():
    """The first round feeds the prompt and brings one token, each of the others six."""
    workload = Workload(1, prompt_tokens="16", output_tokens="61", acceptance="1")
    result = simulate(plan_of(workload=workload))
    assert result.requests.seconds == pytest.approx(PREFILL + 10 * CYCLE)
    assert result.requests.first_token.p50 == pytest.approx(PREFILL)
    assert result.rounds.num_rounds == 11
    assert result.rounds.draft_lengths == {0: 1, 5: 10}
    assert result.rounds.wasted_drafts == 0
    assert result.workers.target_utilisation == pytest.approx(
        11 * VERIFY / (PREFILL + 10 * CYCLE), rel=0.02
    )


@pytest.mark.parametrize("how", ["no draft worker", "no drafts"])
def test_without_drafts_a_round_is_a_verify_and_twice_the_wire(how):
    cluster = Cluster(num_drafts=0) if how == "no draft worker" else Cluster()
    k = {} if how == "no draft worker" else {"num_speculative_tokens": "0"}
    workload = Workload(1, prompt_tokens="16", output_tokens="20")
    result = simulate(plan_of(workload=workload, cluster=cluster, **k))
    assert result.requests.seconds == pytest.approx(20 * PREFILL)
    assert result.rounds.acceptance_length == 1
    assert result.rounds.num_drafted == 0


def test_a_batch_takes_as_long_as_one_row():
    """All rows wait when the target comes, so that they begin together."""
    workload = Workload(8, prompt_tokens="16", output_tokens="61", acceptance="1")
    cluster = Cluster(num_targets=0, changes=(Change(1.0, ChangeKind.JOIN, "target-0"),))
    result = simulate(plan_of(workload=workload, cluster=cluster))
    assert result.requests.seconds == pytest.approx(1 + PREFILL + 10 * CYCLE)
    assert result.rounds.rows_per_round == 8
    assert result.rounds.grouping_rate == result.rounds.full_grouping_rate == 1


def test_two_targets_double_the_throughput():
    one = simulate(plan_of(workload=Workload(32, output_tokens="61", acceptance="1")))
    two = simulate(
        plan_of(
            workload=Workload(64, output_tokens="61", acceptance="1"),
            cluster=Cluster(num_targets=2, num_drafts=2),
        )
    )
    assert two.requests.tokens_per_second == pytest.approx(
        2 * one.requests.tokens_per_second, rel=0.01
    )


def test_overlap_hides_drafts_and_wire():
    """Two groups of a window of two batches take turns: the target is never idle."""
    workload = Workload(64, output_tokens="120", acceptance="1")
    costs = flat_costs(wire=0.01)
    one = simulate(plan_of(costs, workload=workload))
    two = simulate(plan_of(costs, workload=workload, policy="exspec", window_size=16))
    assert two.workers.target_utilisation > 0.93 > 0.75 > one.workers.target_utilisation


def test_latencies_of_requests_one_after_the_other():
    """B = 1 without drafts: request n ends after n times what one takes."""
    workload = Workload(4, prompt_tokens="16", output_tokens="10")
    result = simulate(plan_of(workload=workload, cluster=Cluster(num_drafts=0), batch_size=1))
    alone = 10 * PREFILL
    latency = result.requests.latency
    assert (latency.p50, latency.p90, latency.mean) == pytest.approx(
        (2 * alone, 4 * alone, 2.5 * alone)
    )
    first = result.requests.first_token
    assert first.p99 == pytest.approx(3 * alone + PREFILL)
    assert result.requests.requests_per_second == pytest.approx(1 / alone)


def test_a_trace_comes_when_it_says():
    trace = (TraceEntry(0.0, 16, 10), TraceEntry(100.0, 16, 20))
    result = simulate(plan_of(workload=Workload(trace=trace), cluster=Cluster(num_drafts=0)))
    assert result.requests.seconds == pytest.approx(100 + 20 * PREFILL)
    assert result.requests.latency.p50 == pytest.approx(10 * PREFILL)
    assert result.requests.latency.p99 == pytest.approx(20 * PREFILL)


def test_a_closed_load_sends_the_next_when_one_ends():
    workload = Workload(3, prompt_tokens="16", output_tokens="10", arrivals="closed:1")
    result = simulate(plan_of(workload=workload, cluster=Cluster(num_drafts=0)))
    assert result.requests.latency.p99 == pytest.approx(10 * PREFILL)
    assert result.requests.seconds == pytest.approx(30 * PREFILL)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("k", ["auto", "3"])
def test_every_request_ends_with_all_its_tokens(policy, k):
    workload = Workload(60, "1..700", "1..50", "beta:6,4", "poisson:20")
    result = simulate(
        plan_of(
            flat_costs(jitter=0.002),
            Cluster(num_targets=2, num_drafts=2, kv_layout="padded"),
            workload=workload,
            policy=policy,
            num_speculative_tokens=k,
        )
    )
    assert result.requests.num_requests == 60
    assert result.rounds.num_row_rounds * result.rounds.acceptance_length == pytest.approx(
        result.requests.num_tokens
    )


def test_the_same_plan_gives_the_same_run():
    def run(seed):
        workload = Workload(40, "1..90", "1..50", "beta:6,4", "poisson:20")
        plan = plan_of(flat_costs(jitter=0.002), seed=seed, workload=workload, policy="exspec")
        return simulate(plan)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_target_dies_and_another_takes_over():
    workload = Workload(16, output_tokens="100")
    changes = (
        Change(1.0, ChangeKind.DIE, "target-0"),
        Change(2.0, ChangeKind.JOIN, "target-1"),
    )
    calm = simulate(plan_of(workload=workload))
    result = simulate(plan_of(workload=workload, cluster=Cluster(changes=changes)))
    assert result.requests.num_requests == 16
    assert result.requests.num_tokens == calm.requests.num_tokens
    assert result.requests.seconds > calm.requests.seconds + 0.9


def test_a_worker_that_leaves_goes_when_its_rows_are_gone():
    workload = Workload(16, output_tokens="100")
    changes = (
        Change(0.5, ChangeKind.LEAVE, "target-0"),
        Change(0.5, ChangeKind.LEAVE, "draft-0"),
    )
    cluster = Cluster(num_targets=2, num_drafts=2, changes=changes)
    result = simulate(plan_of(workload=workload, cluster=cluster))
    assert result.requests.num_requests == 16


def test_drafts_die_and_rows_go_on_without():
    workload = Workload(8, output_tokens="100", acceptance="1")
    cluster = Cluster(changes=(Change(1.0, ChangeKind.DIE, "draft-0"),))
    result = simulate(plan_of(workload=workload, cluster=cluster))
    assert result.requests.num_requests == 8
    assert result.rounds.draft_lengths[0] > result.rounds.draft_lengths[5]


def seconds_with_slow_drafts(factor):
    """Of a run whose only draft worker takes so many times as long after a second."""
    changes = (Change(1.0, ChangeKind.SPEED, "draft-0", factor),)
    workload = Workload(64, output_tokens="100", acceptance="0.7")
    cluster = Cluster(changes=changes)
    plan = plan_of(workload=workload, cluster=cluster, num_speculative_tokens="auto")
    return simulate(plan).requests.seconds


def seconds_without_drafts():
    workload = Workload(64, output_tokens="100", acceptance="0.7")
    return simulate(plan_of(workload=workload, cluster=Cluster(num_drafts=0))).requests.seconds


def test_slow_drafts_are_worth_no_less_than_none():
    assert seconds_with_slow_drafts(factor=10.0) < 1.05 * seconds_without_drafts()


def test_a_draft_worker_that_hardly_moves_is_given_up():
    assert seconds_with_slow_drafts(factor=500.0) < 1.2 * seconds_without_drafts()


def test_a_draft_worker_that_is_somewhat_too_slow_is_given_up():
    assert seconds_with_slow_drafts(factor=30.0) < 1.2 * seconds_without_drafts()


def test_no_target_for_a_request_is_said():
    with pytest.raises(InvalidRequestError, match="0 of 1 requests ended"):
        simulate(plan_of(cluster=Cluster(num_targets=0)))


@pytest.mark.parametrize(
    "settings",
    [{"policy": "nosuch"}, {"num_speculative_tokens": "many"}, {"batch_size": 0}],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InvalidRequestError):
        simulate(plan_of(**settings))


def test_changes_of_workers_that_are_not_there_are_refused():
    cluster = Cluster(changes=(Change(0.0, ChangeKind.DIE, "draft-7"),))
    with pytest.raises(InvalidRequestError, match="draft-7 is not there"):
        simulate(plan_of(cluster=cluster))


def test_the_scheduler_is_timed_by_the_clock_it_is_given():
    """A clock that advances by one with every look: a call of `handle` takes one."""
    looks = iter(range(10**9))
    result = simulate(
        plan_of(workload=Workload(1, output_tokens="10"), cluster=Cluster(num_drafts=0)),
        clock=lambda: float(next(looks)),
    )
    assert result.scheduler.total_seconds == result.scheduler.num_events
    assert result.scheduler.round_seconds.p50 == 1
