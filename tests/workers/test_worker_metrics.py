"""What a worker shows while it loads, while it works, and while a pass does not end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
from scraping import Scraped, scrape, series
from toy import ToyRunner, draft_language, facts

from draft_worker.__main__ import DraftRole
from draft_worker.model_proposer import ModelProposer
from draft_worker.settings import DraftSettings
from exspec.core.cluster import WorkerInfo
from exspec.core.errors import UnavailableError
from exspec.core.ids import Role, WorkerId
from exspec.core.rounds import PassTimings
from exspec.runtime import metrics
from exspec.runtime.settings import load_settings
from exspec.runtime.worker_metrics import METRICS, WorkerFigures, WorkerMeasures
from exspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from exspec.wire import worker_process
from exspec.wire.channel import open_aio_channel
from exspec.wire.process import StopSignals

LABELS = {"role": "draft", "model_name": "ngram"}


class _Process:
    """A draft worker's whole life in this event loop, with a toy in place of its model."""

    def __init__(self, monkeypatch, tmp_path) -> None:
        self.runner = ToyRunner(draft_language)
        self.may_load = threading.Event()
        self.stop = StopSignals()
        self._collected = asyncio.Event()
        self._port_file = tmp_path / "address"
        flags = ["--metrics-port", "0", "--port-file", str(self._port_file), "--worker-id", "d"]
        # Nobody listens there: it serves all the same, and keeps trying to register.
        settings = load_settings(DraftSettings, [*flags, "--coordinator", "127.0.0.1:1"])
        identity = worker_process.Identity(Role.DRAFT, "d")
        role = DraftRole(settings, identity)
        monkeypatch.setattr(role, "_proposer", self._load)
        monkeypatch.setattr(worker_process, "stop_signals", lambda: self.stop)
        monkeypatch.setattr(worker_process, "metrics_served", self._served)
        self._metrics_address = asyncio.get_running_loop().create_future()
        self.life = asyncio.create_task(worker_process.run_worker(role, identity, settings))

    async def look(self) -> Scraped:
        """What is published after now."""
        address = await self._metrics_address
        for _ in range(2):  # once the second is asked for, the first is published
            self._collected.clear()
            await self._collected.wait()
        return await scrape(address)

    async def until(self, name: str, value: float) -> Scraped:
        """Look until a series has that value."""
        while True:
            scraped = await self.look()
            if {v for (n, _), v in scraped.items() if n == name} == {value}:
                return scraped

    def open_channel(self):
        """To the worker's own port."""
        return open_aio_channel(self._port_file.read_text())

    def _load(self) -> ModelProposer:
        assert self.may_load.wait(30)
        return ModelProposer(self.runner)

    @contextlib.asynccontextmanager
    async def _served(self, settings, names, collect):
        def collecting():
            self._collected.set()
            return collect()

        async with metrics.metrics_served(settings, names, collecting) as address:
            self._metrics_address.set_result(address)
            yield address


@pytest.fixture
async def process(monkeypatch, tmp_path):
    monkeypatch.setattr(metrics, "PUBLISH_SECONDS", 0.01)
    made = _Process(monkeypatch, tmp_path)
    yield made
    made.may_load.set()
    made.runner.gate.set()
    made.stop.note()
    await asyncio.gather(made.life, return_exceptions=True)


def _request(batch_id: int, *names: str, released: tuple[str, ...] = ()) -> draft_pb2.DraftRequest:
    entries = [
        draft_pb2.DraftEntry(
            key=common_pb2.EntryKey(sequence_id=name, round_index=batch_id),
            tokens=(11, 0, 2),
            num_draft_tokens=2,
        )
        for name in names
    ]
    return draft_pb2.DraftRequest(
        batch_id=batch_id, entries=entries, released_sequence_ids=released
    )


async def test_a_worker_is_not_ready_while_it_loads(process):
    loading = await process.look()
    assert series(loading, "exspec_worker_ready", role="draft") == 0
    assert not [name for name, _ in loading if name == "exspec_worker_slots"]
    process.may_load.set()
    ready = await process.until("exspec_worker_ready", 1)
    assert series(ready, "exspec_worker_slots", **LABELS) == 32
    assert series(ready, "exspec_worker_sequences", **LABELS) == 0
    assert series(ready, "exspec_worker_passes_total", **LABELS) == 0
    assert ("process_start_time_seconds", frozenset()) in ready


async def test_passes_are_counted_and_a_scrape_is_answered_during_one(process):
    process.may_load.set()
    await process.until("exspec_worker_ready", 1)
    async with process.open_channel() as channel:
        stream = draft_pb2_grpc.DraftServiceStub(channel).Draft()
        await stream.write(_request(1, "a", "b"))
        assert (await stream.read()).batch_id == 1
        process.runner.entered.clear()
        process.runner.gate.clear()
        await stream.write(_request(2, "c"))
        assert await asyncio.to_thread(process.runner.entered.wait, 20)
        during = await process.look()
        assert series(during, "exspec_worker_passes_total", **LABELS) == 1
        assert series(during, "exspec_worker_rows_total", **LABELS) == 2
        assert series(during, "exspec_worker_tokens_total", **LABELS) > 0
        process.runner.gate.set()
        assert (await stream.read()).batch_id == 2
        await stream.write(_request(3, released=("a",)))
        assert (await stream.read()).batch_id == 3
        after = await process.look()
        # What only releases is no pass.
        assert series(after, "exspec_worker_passes_total", **LABELS) == 2
        assert series(after, "exspec_worker_pass_seconds_count", **LABELS) == 2
        assert series(after, "exspec_worker_sequences", **LABELS) == 2
        await stream.done_writing()


async def test_a_port_in_use_is_told_before_a_model_is_loaded(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--metrics-port", port, "--coordinator", "127.0.0.1:1"]
        settings = load_settings(DraftSettings, flags)
        identity = worker_process.Identity(Role.DRAFT, "d")
        role = DraftRole(settings, identity)
        monkeypatch.setattr(role, "load", lambda: pytest.fail("it loads"))
        monkeypatch.setattr(worker_process, "stop_signals", StopSignals)
        with pytest.raises(UnavailableError, match="--metrics-port"):
            await worker_process.run_worker(role, identity, settings)


def test_where_the_time_of_passes_went():
    measures = WorkerMeasures()
    measures.note_pass(PassTimings(0.5, 0.25, 1.0, 1.5, num_rows=2, num_tokens=9, num_moved_rows=1))
    measures.note_pass(PassTimings(queue_seconds=9.0, total_seconds=9.0))
    figures = WorkerFigures(worker_info(), 3)
    shown = {
        (sample.metric.name, *sample.labels[2:]): sample.value
        for sample in measures.samples(Role.TARGET, figures)
    }
    phases = ("queue", "align", "forward", "overhead")
    seconds = [shown["exspec_worker_phase_seconds_total", phase] for phase in phases]
    assert seconds == [0.5, 0.25, 1.0, 0.25]
    assert shown["exspec_worker_passes_total",] == 1
    assert shown["exspec_worker_tokens_total",] == 9
    assert shown["exspec_worker_moved_rows_total",] == 1
    assert shown["exspec_worker_kv_bytes",] == 4096


def worker_info() -> WorkerInfo:
    return WorkerInfo(WorkerId("t"), "1", Role.TARGET, "", 8, facts(), "slots", 4096)


def test_names_follow_the_rules_and_occur_once():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("exspec_worker_")
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")
