"""What the coordinator's metrics say of a running cluster, beside what its status says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from coordinator_world import World, check, other_facts, request, under_way, world
from fake_worker import held
from scraping import Scraped, scrape, series

from coordinator import metrics, metrics_vllm
from coordinator.measures import Leaving, Measures
from coordinator.progress import ProgressLog, progress
from exspec.core.acceptance import FinishReason
from exspec.core.cluster import PoolStatus, Totals
from exspec.core.errors import PeerError
from exspec.core.generation import Completed, RequestTimings, Usage
from exspec.core.metrics import HistogramValue
from exspec.runtime import metrics as runtime_metrics
from exspec.runtime.metrics import metrics_served
from exspec.runtime.settings import ServiceSettings


@contextlib.asynccontextmanager
async def _shown(made: World) -> AsyncIterator[_Scraper]:
    """The cluster's metrics, served."""
    scraper = _Scraper(made)
    settings = ServiceSettings(_cli_parse_args=[], metrics_port=0)  # type: ignore[call-arg]
    async with metrics_served(settings, made.parts.view.metrics, scraper.collect) as address:
        scraper.address = address
        yield scraper


class _Scraper:
    """Scrapes what was published after it was asked for."""

    def __init__(self, made: World) -> None:
        self._view = made.parts.view
        self._collected = asyncio.Event()
        self.address = ""

    def collect(self):
        self._collected.set()
        return self._view.samples()

    async def look(self) -> Scraped:
        for _ in range(2):  # once the second is asked for, the first is published
            self._collected.clear()
            await self._collected.wait()
        return await scrape(self.address)


@pytest.fixture(autouse=True)
def _published_often(monkeypatch):
    monkeypatch.setattr(runtime_metrics, "PUBLISH_SECONDS", 0.01)


async def test_counters_are_the_totals_of_the_status():
    async with world() as made, _shown(made) as shown:
        await made.target()
        await made.draft()
        for answer in await asyncio.gather(*(made.generate(max_tokens=20) for _ in range(5))):
            check(answer)
        await made.settle()
        scraped = await shown.look()
        status = made.parts.view.status()
        totals = status.totals
        named = {
            "exspec_requests_total": totals.num_requests,
            "exspec_request_failures_total": totals.num_failed_requests,
            "exspec_prompt_tokens_total": totals.num_prompt_tokens,
            "exspec_generation_tokens_total": totals.num_generated_tokens,
            "exspec_spec_rounds_total": totals.num_rounds,
            "exspec_spec_row_rounds_total": totals.num_row_rounds,
            "exspec_spec_plain_row_rounds_total": totals.num_plain_row_rounds,
            "exspec_spec_draft_tokens_total": totals.num_draft_tokens,
            "exspec_spec_accepted_tokens_total": totals.num_accepted_tokens,
            "exspec_spec_looked_up_tokens_total": totals.num_looked_up_tokens,
            "exspec_spec_accepted_looked_up_tokens_total": totals.num_accepted_looked_up_tokens,
            "exspec_draft_failures_total": totals.num_draft_failures,
            "exspec_overdue_drafts_total": totals.num_overdue_drafts,
            "exspec_requests_waiting": 0,
            "exspec_requests_running": 0,
        }
        assert {name: series(scraped, name, model_name="toy") for name in named} == named
        assert totals.num_accepted_tokens > 0
        assert totals.num_requests == 5
        phases = {
            "draft": totals.draft_seconds,
            "verify": totals.verify_seconds,
            "align": totals.align_seconds,
            "worker": totals.worker_overhead_seconds,
        }
        for phase, seconds in phases.items():
            labels = {"model_name": "toy", "phase": phase}
            assert series(scraped, "exspec_round_seconds_total", **labels) == seconds
        assert series(scraped, "exspec_requests_waiting_limit") == status.max_waiting


async def test_every_model_has_figures_of_its_own():
    async with world() as made, _shown(made) as shown:
        for name in ("a", "b"):
            model = other_facts(name=name, fingerprint=name * 16, tokenizer_sha256=name * 64)
            await made.target(f"t-{name}", model=model)
            await made.draft(f"d-{name}", model=model)
        for name, num_requests in (("a", 1), ("b", 2)):
            for _ in range(num_requests):
                asked = replace(request(max_tokens=20), model=name)
                check(await made.ask(asked))
        await made.settle()
        scraped = await shown.look()
        for pool in made.parts.view.status().pools:
            model = {"model_name": pool.name}
            totals = pool.totals
            assert series(scraped, "exspec_generation_tokens_total", **model) == (
                totals.num_generated_tokens
            )
            assert series(scraped, "exspec_spec_accepted_tokens_total", **model) == (
                totals.num_accepted_tokens
            )
            assert _workers(scraped, "target", "ready", pool.name) == 1
            assert _workers(scraped, "draft", "ready", pool.name) == 1
        for name, num_requests in (("a", 1), ("b", 2)):
            named = ("exspec_requests_total", "exspec_e2e_request_latency_seconds_count")
            assert [series(scraped, one, model_name=name) for one in named] == [num_requests] * 2


async def test_places_of_a_draft_add_up_to_its_tokens():
    async with world() as made, _shown(made) as shown:
        await made.target()
        await made.draft()
        check(await made.generate(max_tokens=40), max_tokens=40)
        await made.settle()
        scraped = await shown.look()
        totals = made.parts.view.status().totals
        drafted = _positions(scraped, "exspec_spec_draft_tokens_per_pos_total")
        accepted = _positions(scraped, "exspec_spec_accepted_tokens_per_pos_total")
        assert sum(drafted) == totals.num_draft_tokens
        assert sum(accepted) == totals.num_accepted_tokens
        assert drafted == sorted(drafted, reverse=True)
        assert len(drafted) == 4  # the world's K
        assert all(a <= d for a, d in zip(accepted, drafted, strict=False))


def _positions(scraped: Scraped, name: str) -> list[float]:
    found = {
        int(dict(key)["position"]): value
        for (series_name, key), value in scraped.items()
        if series_name == name and dict(key)["model_name"] == "toy"
    }
    return [found[position] for position in range(len(found))]


async def test_every_request_that_ends_well_is_observed_once():
    async with world() as made, _shown(made) as shown:
        await made.target()
        for _ in range(3):
            check(await made.generate(max_tokens=6), max_tokens=6)
        check(await made.generate(max_tokens=1), max_tokens=1)
        await made.settle()
        scraped = await shown.look()
        named = ("time_to_first_token", "e2e_request_latency", "request_queue_time")
        for name in named:
            assert series(scraped, f"exspec_{name}_seconds_count", model_name="toy") == 4
        # A request of one token has no token after the first.
        name = "exspec_time_per_output_token_seconds_count"
        assert series(scraped, name, model_name="toy") == 3
        first = series(scraped, "exspec_time_to_first_token_seconds_sum", model_name="toy")
        whole = series(scraped, "exspec_e2e_request_latency_seconds_sum", model_name="toy")
        assert 0 < first <= whole
        endings = {
            reason: series(
                scraped,
                "exspec_request_success_total",
                model_name="toy",
                finished_reason=reason.value,
            )
            for reason in (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH)
        }
        assert sum(endings.values()) == endings[FinishReason.LENGTH] == 4


async def test_a_request_that_fails_or_is_cancelled_is_not_a_success():
    async with world() as made, _shown(made) as shown:
        target = await made.target()
        asking = await under_way(made, request(max_tokens=60))
        await held(target)
        (sequence_id,) = made.driver.ledger.sequence_ids
        made.driver.fail(sequence_id, PeerError("planted"))
        target.runner.gate.set()
        assert (await asking).error is not None
        asking = await under_way(made, request(max_tokens=60))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await made.settle()
        scraped = await shown.look()
        assert series(scraped, "exspec_requests_total", model_name="toy") == 2
        assert series(scraped, "exspec_request_failures_total", model_name="toy") == 1
        name = "exspec_e2e_request_latency_seconds_count"
        assert series(scraped, name, model_name="toy") == 0


async def test_workers_are_counted_by_role_and_state():
    async with world() as made, _shown(made) as shown:
        before = await shown.look()
        assert series(before, "exspec_ready") == 0
        assert _workers(before, "target", "ready", model_name="") == 0
        await made.target()
        await made.draft("d1")
        gone = await made.draft("d2")
        during = await shown.look()
        assert series(during, "exspec_ready") == 1
        assert _workers(during, "target", "ready") == 1
        assert _workers(during, "draft", "ready") == 2
        ages = [value for (name, _), value in during.items() if "heartbeat_age" in name]
        assert len(ages) == 3
        await gone.leave()
        made.workers.remove(gone)
        after = await shown.look()
        assert _workers(after, "draft", "ready") == 1
        assert _workers(after, "draft", "lost", model_name="") == 1
        assert ("exspec_worker_heartbeat_age_seconds", _labels("draft", "d1")) in after
        assert ("exspec_worker_heartbeat_age_seconds", _labels("draft", "d2")) not in after
        assert series(after, "exspec_worker_departures_total", model_name="toy") == 1


def _workers(scraped: Scraped, role: str, state: str, model_name: str = "toy") -> float:
    return series(scraped, "exspec_workers", role=role, state=state, model_name=model_name)


def _labels(role: str, worker: str) -> frozenset[tuple[str, str]]:
    return frozenset({"role": role, "worker": worker}.items())


async def test_sequences_that_change_their_worker_are_counted_with_the_reason():
    async with world() as made, _shown(made) as shown:
        first = await made.target("t1")
        asking = await under_way(made, request(max_tokens=60))
        second = await made.target("t2")
        await first.leave()
        made.workers.remove(first)
        scraped = await shown.look()
        assert _migrations(scraped, Leaving.DRAINING) == 1
        assert _migrations(scraped, Leaving.LOST) == 0
        await held(second)
        await made.target("t3")
        await made.forget(second)
        check(await asking, max_tokens=60)
        assert _migrations(await shown.look(), Leaving.LOST) == 1


def _migrations(scraped: Scraped, leaving: Leaving) -> float:
    labels = {"model_name": "toy", "reason": leaving.value}
    return series(scraped, "exspec_session_migrations_total", **labels)


async def test_a_scrape_is_answered_while_requests_wait_and_run():
    async with world() as made, _shown(made) as shown:
        target = await made.target(num_slots=1)
        target.runner.gate.clear()
        asking = [asyncio.create_task(made.generate(max_tokens=4)) for _ in range(3)]
        await made.bell.until(lambda: made.parts.view.status().num_waiting == 2)
        scraped = await shown.look()
        assert series(scraped, "exspec_requests_waiting", model_name="toy") == 2
        assert series(scraped, "exspec_requests_running", model_name="toy") == 1
        target.runner.gate.set()
        for answer in await asyncio.gather(*asking):
            check(answer, max_tokens=4)


# vLLM's names


async def test_figures_have_vllms_names_too_when_asked_for():
    async with world(metrics_compat="vllm") as made, _shown(made) as shown:
        await made.target()
        await made.draft()
        check(await made.generate(max_tokens=20))
        await made.settle()
        scraped = await shown.look()
        totals = made.parts.view.status().totals
        labels = {"model_name": "toy", "engine": "0"}
        expected = {
            "vllm:num_requests_running": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0,
            "vllm:prompt_tokens_total": totals.num_prompt_tokens,
            "vllm:generation_tokens_total": totals.num_generated_tokens,
            "vllm:spec_decode_num_drafts_total": totals.num_row_rounds
            - totals.num_plain_row_rounds,
            "vllm:spec_decode_num_draft_tokens_total": totals.num_draft_tokens,
            "vllm:spec_decode_num_accepted_tokens_total": totals.num_accepted_tokens,
            "vllm:time_to_first_token_seconds_count": 1,
            "vllm:e2e_request_latency_seconds_count": 1,
        }
        assert {name: series(scraped, name, **labels) for name in expected} == expected
        per_pos = _positions(scraped, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
        assert sum(per_pos) == totals.num_accepted_tokens
        success = series(scraped, "vllm:request_success_total", **labels, finished_reason="length")
        assert success == 1


async def test_slots_in_use_are_vllms_cache_usage():
    async with world(metrics_compat="vllm") as made, _shown(made) as shown:
        target = await made.target(num_slots=4)
        asking = await under_way(made, request(max_tokens=60))
        await held(target)
        labels = {"model_name": "toy", "engine": "0"}
        assert series(await shown.look(), "vllm:kv_cache_usage_perc", **labels) == 0.25
        target.runner.gate.set()
        await asking


async def test_without_being_asked_nothing_has_vllms_names():
    async with world() as made, _shown(made) as shown:
        await made.target()
        assert not [name for name, _ in await shown.look() if name.startswith("vllm:")]


def test_names_follow_the_rules_and_occur_once():
    both = (*metrics.METRICS, *metrics_vllm.METRICS)
    names = [metric.name for metric in both]
    assert len(set(names)) == len(names)
    for metric in both:
        assert metric.name.startswith(("exspec_", "vllm:"))
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")


# The pieces


def test_time_left_over_by_rounds_is_never_taken_back():
    measures = Measures()
    measures.note_round(Totals(round_seconds=5, draft_seconds=1))
    # With groups that overlap, one round may bring the drafts of another.
    measures.note_round(Totals(round_seconds=6, draft_seconds=4))
    assert measures.value.waiting_seconds == 4
    measures.note_round(Totals(round_seconds=9, draft_seconds=4))
    assert measures.value.waiting_seconds == 5


def test_time_per_token_leaves_the_first_out():
    measures = Measures()
    timings = RequestTimings(0.5, 1.0, 4.0)
    measures.note_completed(Completed(FinishReason.LENGTH, Usage(3, 7), timings=timings))
    assert measures.value.time_per_output_token.total == 0.5
    assert measures.value.queue_time.total == 0.5


def test_a_row_counts_at_every_place_it_reaches():
    measures = Measures()
    for drafted, accepted in ((3, 1), (1, 1), (0, 0)):
        measures.note_row(drafted, accepted)
    value = measures.value
    assert value.drafted_per_position == (2, 1, 1)
    assert value.accepted_per_position == (2,)


# The line in the log


def _pool(totals: Totals, num_waiting: int = 0) -> PoolStatus:
    return PoolStatus("toy", num_waiting=num_waiting, totals=totals)


def test_a_line_says_what_happened_since_the_last_one():
    since = Totals(
        num_generated_tokens=50,
        num_rounds=10,
        num_row_rounds=20,
        num_draft_tokens=60,
        num_accepted_tokens=30,
        num_looked_up_tokens=15,
    )
    line = progress(_pool(since, num_waiting=3), since, 10.0)
    assert line == (
        "speculation model=toy acceptance_length=2.50 acceptance_rate=0.500 "
        "looked_up=0.250 draft_tokens_per_row=3.00 tokens_per_second=5.0 running=0 waiting=3"
    )


def test_no_line_while_there_is_nothing_to_do(caplog):
    caplog.set_level(logging.INFO)
    now, totals = 0.0, Totals()
    log = ProgressLog(lambda: (_pool(totals),), lambda: now)
    log.write()
    assert not caplog.records
    now, totals = 10.0, Totals(num_generated_tokens=30, num_rounds=3, num_row_rounds=3)
    log.write()
    assert "tokens_per_second=3.0" in caplog.text
    caplog.clear()
    now = 20.0
    log.write()
    assert not caplog.records


def test_waiting_alone_is_work():
    assert progress(_pool(Totals(), num_waiting=1), Totals(), 10.0) is not None


def test_histograms_have_vllms_buckets():
    value = Measures().value
    assert isinstance(value.time_to_first_token, HistogramValue)
    assert value.time_to_first_token.bounds[0] == 0.001
    assert value.time_to_first_token.bounds[-1] == 2560.0
    assert value.request_latency.bounds[-1] == 7680.0
