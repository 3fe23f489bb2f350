"""A coordinator for tests: a real gRPC server on a free loopback port that answers from a script.

For tests of code that uses the SDK: no model, no workers. Tokens are the UTF-8 bytes of the text.

    with FakeCoordinator() as fake, Client(fake.address) as client:
        fake.reply("Hello")
        assert client.generate("Hi").text == "Hello"
        fake.fail(QueueFullError("full", retry_after_seconds=2))
        fake.reply("Hello", lose_after=3)  # the coordinator dies, and the client goes on
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from exspec.client.fake_answers import (
    FAKE_MODEL,
    BatchAnswer,
    CoordinatorLost,
    FakeReply,
    SingleAnswer,
    default_status,
    prompt_text,
    text_of,
    tokens_of,
)
from exspec.core.cluster import ClusterStatus
from exspec.core.errors import ExspecError, InvalidRequestError
from exspec.core.generation import GenerationRequest
from exspec.v1 import generation_pb2 as pb
from exspec.v1 import generation_pb2_grpc, registry_pb2, registry_pb2_grpc
from exspec.wire.channel import MAX_MESSAGE_BYTES, MIN_PING_INTERVAL_MS
from exspec.wire.convert_cluster import status_to_message
from exspec.wire.convert_generation import (
    batch_event_to_message,
    batch_item,
    check_batch,
    event_to_message,
    num_sequences,
    request_from_message,
)
from exspec.wire.convert_prompt import prompt_from_message
from exspec.wire.status import to_status

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)


class FakeCoordinator:
    """The server and its script. Owns both; start it with `with`, or with `start` and `stop`.

    `port` 0 takes a free one. Without a script every prompt is answered with `default_text`.
    `requests` are those received, in order, and `drained` the workers that were drained; `status`
    is what `cluster_status` answers and may be set.
    """

    def __init__(self, *, port: int = 0, default_text: str = "ok", num_threads: int = 8) -> None:
        self.requests: list[GenerationRequest] = []
        self.drained: list[str] = []
        self.status: ClusterStatus = default_status()
        self._default_text = default_text
        self._script: deque[FakeReply] = deque()
        self._lost: list[CoordinatorLost] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._cancelled = threading.Semaphore(0)
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="fake-coordinator")
        self._server = grpc.server(self._executor, options=_OPTIONS)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._add_services()

    @property
    def address(self) -> str:
        """host:port to give to a client."""
        return f"127.0.0.1:{self._port}"

    def reply(
        self, text: str, *, delay_seconds: float = 0.0, lose_after: int | None = None
    ) -> None:
        """Answer the next prompt that has no answer yet with `text`, a pause before each token.

        `lose_after`: characters after which the coordinator is lost, for those who have not got
        the rest; who resumes gets it.
        """
        planned = () if lose_after is None else (lose_after,)
        self.script(FakeReply(text, delay_seconds=delay_seconds, lose_after=planned))

    def fail(self, error: ExspecError, *, after_text: str = "") -> None:
        """Fail the next prompt that has no answer yet, after `after_text` if there is one."""
        self.script(FakeReply(after_text, error=error))

    def script(self, *replies: FakeReply) -> None:
        """Answers for the next prompts, one each, in the order they arrive."""
        with self._lock:
            self._script.extend(replies)

    def wait_cancelled(self, timeout: float = 5.0) -> bool:
        """Whether a call whose client went away was seen; each is reported once."""
        return self._cancelled.acquire(timeout=timeout)

    def start(self) -> None:
        """Serve."""
        self._server.start()

    def stop(self) -> None:
        """Drop all calls and stop."""
        self._stopping.set()
        self._server.stop(0).wait()
        self._executor.shutdown()

    def take(self, message: pb.GenerateRequest) -> SingleAnswer:
        """The answer to a request, which is checked as the coordinator would; raises its error."""
        request = request_from_message(message)
        with self._lock:
            self.requests.append(request)
            reply = self._next_reply(request)
        return SingleAnswer(request, reply, self._stopping)

    def note_loss(self, lost: CoordinatorLost) -> None:
        """A call broke as planned."""
        with self._lock:
            self._lost.append(lost)

    def note_end(self, *, was_cancelled: bool) -> None:
        """A call ended."""
        if was_cancelled and not self._stopping.is_set():
            self._cancelled.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _next_reply(self, request: GenerationRequest) -> FakeReply:
        for lost in self._lost:
            if request.resume is not None and lost.prompt == request.prompt:
                self._lost.remove(lost)
                return lost.rest
        return self._script.popleft() if self._script else FakeReply(self._default_text)

    def _add_services(self) -> None:
        generation = _Generation(self)
        cast("Any", generation_pb2_grpc).add_GenerationServiceServicer_to_server(
            generation, self._server
        )
        cast("Any", registry_pb2_grpc).add_AdminServiceServicer_to_server(
            _Admin(self), self._server
        )
        servicer = cast("Any", health).HealthServicer()
        for name in ("", "exspec.v1.GenerationService"):
            servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(servicer, self._server)


class _Generation:
    """GenerationService over a script."""

    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Any:  # noqa: ANN401, N802
        try:
            for event in self._fake.take(request).events(context.is_active):
                yield event_to_message(event)
        except ExspecError as error:
            context.abort_with_status(to_status(error))
        except CoordinatorLost as lost:
            self._break(context, lost)
        finally:
            self._fake.note_end(was_cancelled=not context.is_active())

    def GenerateBatch(  # noqa: N802
        self,
        request: pb.GenerateBatchRequest,
        context: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        try:
            check_batch(request)
            items = [batch_item(request, index) for index in range(num_sequences(request))]
            for index, event in BatchAnswer(items, self._fake.take).events(context.is_active):
                yield batch_event_to_message(index, event)
        except ExspecError as error:
            context.abort_with_status(to_status(error))
        except CoordinatorLost as lost:
            self._break(context, lost)
        finally:
            self._fake.note_end(was_cancelled=not context.is_active())

    def _break(self, context: Any, lost: CoordinatorLost) -> None:  # noqa: ANN401
        """End a call as the library does when the connection is gone: a status without details."""
        self._fake.note_loss(lost)
        context.abort(grpc.StatusCode.UNAVAILABLE, str(lost))

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:  # noqa: ANN401, ARG002, N802
        return pb.ListModelsResponse(models=[FAKE_MODEL])

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse | None:  # noqa: ANN401, N802
        try:
            text = prompt_text(prompt_from_message(request.prompt))
        except ExspecError as error:
            context.abort_with_status(to_status(error))
            return None
        return pb.TokenizeResponse(token_ids=tokens_of(text), text=text)

    def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:  # noqa: ANN401, ARG002, N802
        return pb.DetokenizeResponse(text=text_of(request.token_ids))


class _Admin:
    """AdminService over a settable state."""

    def __init__(self, fake: FakeCoordinator) -> None:
        self._fake = fake

    def GetClusterStatus(  # noqa: N802
        self,
        request: registry_pb2.GetClusterStatusRequest,  # noqa: ARG002
        context: Any,  # noqa: ANN401, ARG002
    ) -> registry_pb2.GetClusterStatusResponse:
        return status_to_message(self._fake.status)

    def DrainWorker(  # noqa: N802
        self,
        request: registry_pb2.DrainWorkerRequest,
        context: Any,  # noqa: ANN401
    ) -> registry_pb2.DrainWorkerResponse | None:
        for one in self._fake.status.workers:
            if one.worker.worker_id == request.worker_id:
                self._fake.drained.append(request.worker_id)
                return registry_pb2.DrainWorkerResponse(num_moved_sequences=one.num_sequences)
        error = InvalidRequestError(f"worker {request.worker_id!r} is not known", field="worker_id")
        context.abort_with_status(to_status(error))
        return None
