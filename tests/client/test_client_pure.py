"""The parts of the SDK that talk to nobody: retries, waiting, folding, and what importing loads."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

import exspec
from exspec.client.attempts import Attempts, ClientSettings
from exspec.client.courses import BatchCourse, GenerationCourse
from exspec.client.folds import GenerationFold
from exspec.client.requests import plan_batch, plan_generate
from exspec.client.waiting import ReadyWait, missing_of
from exspec.core.acceptance import FinishReason
from exspec.core.cluster import ClusterStatus, WorkerInfo, WorkerState, WorkerStatus
from exspec.core.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
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


def attempts_of(clock, *, timeout=600.0, max_retries=2, resume_timeout=60.0):
    settings = ClientSettings("host:1", timeout, 5.0, max_retries, resume_timeout)
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
    course = BatchCourse(plan_batch(["a", "b"], {}))
    with pytest.raises(ProtocolError, match="sequence 2 of 2"):
        course.take(pb.GenerateBatchResponse(index=2, delta=pb.GenerationDelta(text="x")))


LOST = UnavailableError("gone", retry_after_seconds=0.5)


def test_a_lost_coordinator_is_waited_for_until_there_is_no_news_for_too_long(clock):
    attempts = attempts_of(clock, resume_timeout=10, max_retries=0)
    assert [attempts.pause_after_loss(LOST) for _ in range(4)] == [0.5, 1, 2, 2]
    # Whatever a later try can mend is waited for, too, once it is lost.
    assert attempts.pause_after_loss(UnavailableError("no target has joined")) == 2
    assert attempts.pause_after_loss(QueueFullError("full", retry_after_seconds=5)) == 5
    clock.now = 9
    with pytest.raises(UnavailableError):
        attempts.pause_after_loss(LOST)
    attempts.note_progress()
    assert attempts.pause_after_loss(LOST) == 0.5


@pytest.mark.parametrize(
    "error", [UnavailableError("no target is left"), QueueFullError("x"), InternalError("x")]
)
def test_what_the_coordinator_says_for_good_is_not_resumed(clock, error):
    with pytest.raises(type(error)):
        attempts_of(clock).pause_after_loss(error)


def test_resuming_can_be_switched_off_and_ends_with_the_deadline(clock):
    with pytest.raises(UnavailableError):
        attempts_of(clock, resume_timeout=0).pause_after_loss(LOST)
    with pytest.raises(UnavailableError):
        attempts_of(clock, timeout=0.4).pause_after_loss(LOST)


def _started(index=0, **said):
    return pb.GenerateBatchResponse(index=index, started=pb.GenerationStarted(**said))


def test_a_batch_asks_again_for_what_is_left_of_it():
    course = BatchCourse(plan_batch(["a", "b", "c", "d"], {"request_id": "mine"}))
    said = {"model": "m", "model_fingerprint": "f", "max_tokens": 7, "prompt_sha256": b"h"}
    said["seed"] = 2**64 - 1
    for message in (
        _started(0, **said),
        pb.GenerateBatchResponse(index=0, completed=pb.GenerationCompleted(finish_reason=3)),
        pb.GenerateBatchResponse(index=1, error=pb.GenerationError(reason="InternalError")),
        _started(3, **said),
        pb.GenerateBatchResponse(index=3, delta=pb.GenerationDelta(text="x", token_ids=[5, 6])),
    ):
        assert course.take(message) is not None
    again = course.request()
    assert [prompt.text for prompt in again.prompts] == ["c", "d"]
    assert again.resumes[0] == pb.Resume(model_fingerprint="f")
    assert again.model == "m"
    resume = {name: value for name, value in said.items() if name != "model"}
    assert again.resumes[1] == pb.Resume(token_ids=[5, 6], **resume)
    index, started = course.take(_started(0, **said))
    assert (index, started.request_id) == (2, "mine-2")
    assert course.take(_started(1, **said)) is None
    index, delta = course.take(
        pb.GenerateBatchResponse(index=1, delta=pb.GenerationDelta(text="y", token_ids=[7]))
    )
    assert (index, delta) == (3, Delta("y", (7,)))
    assert course.request().resumes[1].token_ids == [5, 6, 7]


def test_a_coordinator_that_begins_again_is_found_out():
    course = GenerationCourse(plan_generate("a", {}))
    started = pb.GenerationStarted(model_fingerprint="f")
    course.take(pb.GenerateResponse(started=started))
    with pytest.raises(ProtocolError, match="begun again"):
        course.take(pb.GenerateResponse(started=pb.GenerationStarted()))


def test_what_an_older_coordinator_began_is_not_resumed(clock):
    course = GenerationCourse(plan_generate("a", {}))
    course.take(pb.GenerateResponse(started=pb.GenerationStarted()))
    with pytest.raises(UnavailableError):
        attempts_of(clock).pause_before_next(course, LOST)


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        (range(2**31), {}, "prompt"),
        ("x", {"stop_token_ids": range(2**31)}, "stop_token_ids"),
        ("x" * (4 << 20), {}, "prompt"),
        ("x", {"stop": ["s"] * 10_000}, "stop"),
    ],
)
def test_absurd_requests_are_refused_before_they_cost_anything(prompt, options, field):
    with pytest.raises(InvalidRequestError) as caught:
        plan_generate(prompt, options)
    assert caught.value.field == field


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


def test_a_timeout_that_is_no_number_is_the_callers_fault():
    settings = ClientSettings("a:1", 1.0, 1.0, 0, resume_timeout=1.0)
    with pytest.raises(InvalidRequestError) as caught:
        Attempts(settings, lambda: 0.0, "r", math.nan)
    assert caught.value.field == "timeout"
