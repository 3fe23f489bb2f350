"""The parts of the SDK that talk to nobody: retries, waiting, folding, and what importing loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import exspec
from exspec.client.attempts import Attempts, ClientSettings
from exspec.client.results import BatchFold, GenerationFold
from exspec.client.waiting import ReadyWait, missing_of
from exspec.core.acceptance import FinishReason
from exspec.core.cluster import ClusterStatus, WorkerInfo, WorkerState, WorkerStatus
from exspec.core.errors import (
    DeadlineExceededError,
    InternalError,
    ProtocolError,
    QueueFullError,
    UnavailableError,
)
from exspec.core.generation import Completed, Delta, Started, Usage
from exspec.core.ids import Role, WorkerId
from exspec.core.models import ModelFacts
from exspec.v1 import generation_pb2 as pb


class FakeClock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


def attempts_of(clock, *, timeout=600.0, max_retries=2):
    settings = ClientSettings("host:1", timeout, 5.0, max_retries)
    return Attempts(settings, clock, "mine", None)


def test_pauses_double_from_half_a_second_to_eight(clock):
    attempts = attempts_of(clock, max_retries=7)
    pauses = [attempts.pause_after(UnavailableError("x")) for _ in range(7)]
    assert pauses == [0.5, 1, 2, 4, 8, 8, 8]
    with pytest.raises(UnavailableError):
        attempts.pause_after(UnavailableError("x"))


def test_a_delay_asked_for_is_a_lower_bound(clock):
    attempts = attempts_of(clock)
    assert attempts.pause_after(QueueFullError("x", retry_after_seconds=30)) == 30
    assert attempts.pause_after(QueueFullError("x", retry_after_seconds=0.1)) == 1


def test_what_a_retry_cannot_mend_is_raised_at_once(clock):
    attempts = attempts_of(clock)
    with pytest.raises(InternalError):
        attempts.pause_after(InternalError("x"))


def test_tries_share_one_deadline(clock):
    attempts = attempts_of(clock, timeout=10)
    clock.now = 9.0
    assert attempts.remaining() == 1.0
    assert attempts.connect_seconds() == 1.0
    clock.now = 9.8
    with pytest.raises(UnavailableError):
        attempts.pause_after(UnavailableError("x"))
    clock.now = 10.0
    with pytest.raises(DeadlineExceededError, match="no result within 10 s") as caught:
        attempts.remaining()
    assert caught.value.request_id == "mine"


def worker(role, state, reason=""):
    facts = ModelFacts("m", "", 8, 8, "", 64, (), "float32", "cpu", 1, "")
    name = WorkerId(f"{role.value}-0")
    return WorkerStatus(WorkerInfo(name, "i", role, "host:2", 1, facts), state, reason)


def test_a_cluster_that_is_not_ready_says_what_is_missing():
    status = ClusterStatus("v", is_ready=False, model="", policy="eqspec")
    assert missing_of(status) == "no target worker has joined"
    workers = (
        worker(Role.DRAFT, WorkerState.READY),
        worker(Role.TARGET, WorkerState.REFUSED, "another tokenizer"),
    )
    status = ClusterStatus("v", is_ready=False, model="", policy="eqspec", workers=workers)
    assert missing_of(status) == "target-0 is refused (another tokenizer)"


def test_waiting_ends_with_its_time(clock):
    wait = ReadyWait("host:1", 3.0, clock)
    status = ClusterStatus("v", is_ready=False, model="", policy="eqspec")
    assert not wait.is_over(status)
    wait.note_error(UnavailableError("nobody"))
    clock.now = 3.0
    with pytest.raises(UnavailableError, match="not ready after 3 s: nobody"):
        wait.note_error(UnavailableError("nobody"))
    with pytest.raises(UnavailableError, match="no target worker"):
        wait.is_over(status)


def test_events_after_the_end_are_a_protocol_error():
    fold = GenerationFold("mine")
    fold.add(Started("mine", "m", 1))
    fold.add(Delta("a", (97,)))
    fold.add(Completed(FinishReason.LENGTH, Usage(1, 1)))
    assert fold.result().text == "a"
    with pytest.raises(ProtocolError):
        fold.add(Delta("b", (98,)))


def test_a_batch_refuses_an_index_it_did_not_ask_for():
    fold = BatchFold("mine", 2)
    with pytest.raises(ProtocolError, match="prompt 2 of 2"):
        fold.decode(pb.GenerateBatchResponse(index=2, delta=pb.GenerationDelta(text="x")))


def test_every_public_name_can_be_had():
    for name in exspec.__all__:
        assert getattr(exspec, name) is not None
        assert name in dir(exspec)
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = exspec.Clinet


def loaded_by(statement):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_exspec_loads_next_to_nothing():
    loaded = loaded_by("import exspec")
    assert not loaded & {"grpc", "google.protobuf", "torch", "transformers", "pydantic"}


def test_the_client_loads_no_model_code_and_no_server():
    loaded = loaded_by("from exspec import Client, AsyncClient; Client('127.0.0.1:1').close()")
    assert not loaded & {
        "torch", "transformers", "tokenizers", "pydantic_settings", "typer", "rich",
        "grpc_reflection.v1alpha", "grpc_health.v1", "exspec.wire.server", "exspec.engine",
    }  # fmt: skip
