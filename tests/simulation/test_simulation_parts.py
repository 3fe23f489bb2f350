"""The parts of the simulator on their own: time, costs, workloads, luck, workers, figures."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.scheduler.commands import Draft, DraftOrder, Verify, VerifyOrder
from coordinator.simulation.costs import (
    AlignmentCosts,
    DraftCosts,
    VerifyCosts,
    alignment_seconds,
    draft_seconds,
    num_moved_tokens,
    verify_seconds,
)
from coordinator.simulation.distributions import acceptances, arrivals, lengths
from coordinator.simulation.plan import Change, ChangeKind, Cluster
from coordinator.simulation.presets import CPU_PAIR, PAPER
from coordinator.simulation.sequences import Sequences
from coordinator.simulation.spreads import Spread, spread
from coordinator.simulation.timeline import Timeline
from coordinator.simulation.workers import Fleet
from coordinator.simulation.workload import (
    SimulatedRequest,
    TraceEntry,
    Workload,
    requests_of,
)
from exspec.core.alignment import AlignmentPlan, RowShape, plan_alignment
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import Role
from exspec.core.rounds import EntryKey
from tests.simulation.simulation_plans import DRAFT, VERIFY, WIRE, flat_costs


def verify_of(num_rows, num_tokens, length=50, worker="target-0", alignment=None):
    """`num_tokens` fed per row, all but one of them drafts."""
    orders = tuple(
        VerifyOrder(EntryKey(f"r{index}", 1, 1), length - 1, length, num_tokens - 1)
        for index in range(num_rows)
    )
    return Verify(worker, 1, orders, alignment)


def draft_of(drafts, num_fed=1, worker="draft-0"):
    orders = tuple(
        DraftOrder(EntryKey(f"r{index}", 1, 1), 50 - num_fed, 50, num_drafts)
        for index, num_drafts in enumerate(drafts)
    )
    return Draft(worker, 1, orders, 1.0)


# Time


def test_what_was_put_in_first_happens_first_at_one_moment():
    timeline, seen = Timeline(), []
    timeline.at(2.0, lambda: seen.append("late"))
    for name in "abc":
        timeline.at(1.0, lambda name=name: seen.append(name))
    while timeline.step():
        pass
    assert seen == ["a", "b", "c", "late"]
    assert timeline.now == 2.0


def test_nothing_happens_in_the_past():
    timeline = Timeline()
    timeline.at(1.0, lambda: None)
    timeline.step()
    with pytest.raises(ValueError, match="has passed"):
        timeline.at(0.5, lambda: None)


# Costs


@pytest.mark.parametrize(
    ("rows", "tokens", "measured"), [(1, 1, 21e-3), (8, 1, 30e-3), (1, 6, 24e-3), (8, 6, 60e-3)]
)
def test_the_default_pair_costs_what_was_measured(rows, tokens, measured):
    seconds = verify_seconds(CPU_PAIR.verify, verify_of(rows, tokens))
    assert seconds == pytest.approx(measured, rel=0.04)


def test_the_paper_machine_costs_what_is_printed():
    assert verify_seconds(PAPER.verify, verify_of(4, 6, 200)) == pytest.approx(24.9e-3, rel=0.02)
    assert draft_seconds(PAPER.draft, draft_of([5] * 4)) == pytest.approx(15.2e-3, rel=0.02)
    moved = AlignmentPlan(200, (0, 1, 2, 3), (0, 1, 1, 1))
    assert alignment_seconds(PAPER.alignment, moved) == pytest.approx(15.3e-3, rel=0.02)


def test_verify_counts_rows_tokens_and_context():
    costs = VerifyCosts(1.0, 0.1, 0.01, 0.001)
    assert verify_seconds(costs, verify_of(2, 3, length=50)) == pytest.approx(
        1 + 0.1 * 2 + 0.01 * 2 * 3 + 0.001 * 2 * 52
    )


def test_draft_takes_the_steps_of_its_longest_row():
    costs = DraftCosts(1.0, 0.1, 0.01, 0.001)
    assert draft_seconds(costs, draft_of([5, 2], num_fed=3)) == pytest.approx(
        1 + 0.1 * 5 + 0.01 * 7 + 0.001 * 6
    )
    assert draft_seconds(costs, draft_of([0])) == pytest.approx(1 + 0.1 + 0.01 + 0.001)


def test_only_rows_that_move_are_paid_for():
    costs = AlignmentCosts(1.0, 0.1)
    plan = plan_alignment([RowShape(0, 7), RowShape(0, 5)])
    assert num_moved_tokens(plan) == 5
    assert alignment_seconds(costs, plan) == pytest.approx(1.5)
    assert alignment_seconds(costs, plan_alignment([RowShape(2, 5), RowShape(0, 7)])) == 0
    assert alignment_seconds(costs, None) == 0


# Workloads


def test_lengths_are_constant_uniform_or_in_turn():
    assert lengths("prompt_tokens", "7", 3, Random(0)) == (7, 7, 7)
    assert lengths("prompt_tokens", "1,2", 3, Random(0)) == (1, 2, 1)
    drawn = lengths("prompt_tokens", "3..9", 2000, Random(0))
    assert (min(drawn), max(drawn)) == (3, 9)
    assert sum(drawn) / len(drawn) == pytest.approx(6, rel=0.03)


def test_acceptance_is_constant_or_drawn_per_row():
    assert acceptances("0.5", 2, Random(0)) == (0.5, 0.5)
    drawn = acceptances("beta:7,3", 2000, Random(0))
    assert sum(drawn) / len(drawn) == pytest.approx(0.7, rel=0.03)
    assert len(set(drawn)) > 1000


def test_poisson_arrivals_have_their_rate():
    times = arrivals("poisson:20", 4000, Random(0)).times
    assert list(times) == sorted(times)
    assert times[-1] / 4000 == pytest.approx(1 / 20, rel=0.05)


def test_a_closed_load_holds_the_others_back():
    requests = requests_of(Workload(num_requests=5, arrivals="closed:2"), seed=0)
    assert [request.arrival_seconds for request in requests] == [0, 0, None, None, None]


def test_changing_one_quantity_leaves_the_others_as_they_were():
    one = requests_of(Workload(prompt_tokens="1..50", arrivals="poisson:3"), seed=4)
    other = requests_of(
        Workload(prompt_tokens="1..50", arrivals="poisson:9", output_tokens="1..9"), seed=4
    )
    assert [r.prompt_length for r in one] == [r.prompt_length for r in other]


def test_a_trace_takes_the_place_of_what_would_be_drawn():
    trace = (TraceEntry(0.5, 3, 4), TraceEntry(2.0, 5, 6, priority=1, group="g"))
    first, second = requests_of(Workload(trace=trace, acceptance="0.9"), seed=0)
    assert (first.arrival_seconds, first.prompt_length, first.max_length) == (0.5, 3, 7)
    assert (second.priority, second.group, second.acceptance) == (1, "g", 0.9)


@pytest.mark.parametrize(
    "workload",
    [
        {"num_requests": 0},
        {"prompt_tokens": "x"},
        {"output_tokens": "0"},
        {"prompt_tokens": "9..3"},
        {"acceptance": "1.5"},
        {"acceptance": "beta:1"},
        {"arrivals": "soon"},
        {"arrivals": "poisson:-1"},
        {"arrivals": "closed:1.5"},
    ],
)
def test_texts_that_mean_nothing_are_refused(workload):
    with pytest.raises(InvalidRequestError):
        requests_of(Workload(**workload), seed=0)


# Luck


def commit(sequences, length, num_drafts):
    order = VerifyOrder(EntryKey("r", 1, 1), length - 1, length, num_drafts)
    return sequences.verified(order)


def run_alone(acceptance, num_drafts, output_length, seed=0):
    """Tokens of each round of one sequence."""
    sequences, length, blocks = Sequences(seed), 10, []
    sequences.open(SimulatedRequest("r", 0.0, length, output_length, acceptance))
    while True:
        outcome = commit(sequences, length, num_drafts)
        length += outcome.num_committed
        blocks.append(outcome.num_committed)
        if outcome.is_finished:
            assert length == 10 + output_length
            return blocks


def test_all_or_nothing():
    assert run_alone(1.0, 5, 12) == [6, 6]
    assert run_alone(0.0, 5, 3) == [1, 1, 1]
    assert run_alone(1.0, 5, 8) == [6, 2]


def test_a_round_brings_a_geometric_run_and_the_bonus():
    blocks = run_alone(0.7, 5, 30_000)
    expected = sum(0.7**count for count in range(6))
    assert sum(blocks) / len(blocks) == pytest.approx(expected, rel=0.02)


def test_prefill_commits_nothing():
    sequences = Sequences(0)
    sequences.open(SimulatedRequest("r", 0.0, 10, 5, 1.0))
    outcome = sequences.verified(VerifyOrder(EntryKey("r", 1, 1), 0, 4, is_prefill=True))
    assert (outcome.num_committed, outcome.kv_length, outcome.is_finished) == (0, 4, False)


# Workers


def fleet_of(costs=None, **kwargs):
    fleet = Fleet(costs or flat_costs(**kwargs), "slots", seed=0)
    fleet.join("target-0", Role.TARGET, 0.0)
    fleet.join("draft-0", Role.DRAFT, 0.0)
    return fleet


def test_batches_are_served_one_after_the_other():
    fleet = fleet_of()
    first, second = (fleet.send(verify_of(1, 1), 0.0) for _ in range(2))
    assert first.at_seconds == pytest.approx(VERIFY + 2 * WIRE)
    assert second.at_seconds == pytest.approx(2 * VERIFY + 2 * WIRE)
    assert second.cost.queued_seconds == pytest.approx(VERIFY)
    assert second.cost.wire_seconds == pytest.approx(2 * WIRE)
    assert fleet.send(draft_of([5]), 0.0).at_seconds == pytest.approx(DRAFT + 2 * WIRE)


def test_a_slow_worker_takes_longer():
    fleet = fleet_of()
    fleet.set_factor("target-0", 3.0)
    assert fleet.send(verify_of(1, 1), 0.0).cost.busy_seconds == pytest.approx(3 * VERIFY)


def test_jitter_keeps_the_order_of_a_stream():
    fleet = fleet_of(jitter=1.0)
    answers = [fleet.send(draft_of([1]), index / 100).at_seconds for index in range(50)]
    assert answers == sorted(answers)


def test_alignment_is_paid_in_the_padded_layout_alone():
    plan = plan_alignment([RowShape(0, 7), RowShape(0, 5)])
    for layout, extra in (("slots", 0.0), ("padded", PAPER.alignment.fixed_seconds)):
        fleet = Fleet(PAPER, layout, seed=0)
        fleet.join("target-0", Role.TARGET, 0.0)
        fleet.send(verify_of(2, 1, alignment=plan), 0.0)
        (worker,) = fleet.all_workers()
        assert worker.alignment_seconds == pytest.approx(extra, rel=0.01)


def test_a_worker_that_left_worked_until_then():
    fleet = fleet_of()
    fleet.send(verify_of(1, 1), 0.0)
    fleet.remove("target-0", 0.05)
    worker = fleet.all_workers()[-1]
    assert worker.busy_seconds == pytest.approx(0.05 - WIRE)


def test_names_of_workers_say_their_role():
    with pytest.raises(InvalidRequestError, match='"target-N"'):
        Change(1.0, ChangeKind.DIE, "worker-1")
    with pytest.raises(InvalidRequestError, match="impossible"):
        Change(-1.0, ChangeKind.DIE, "draft-1")
    with pytest.raises(InvalidRequestError, match="paged"):
        Cluster(kv_layout="paged")


# Figures


def test_percentiles_are_of_the_nearest_rank():
    assert spread([]) == Spread()
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(mean=2.5, p50=2.0, p90=4.0, p99=4.0)
    hundred = spread([float(value) for value in range(1, 101)])
    assert (hundred.p50, hundred.p90, hundred.p99) == (50.0, 90.0, 99.0)
