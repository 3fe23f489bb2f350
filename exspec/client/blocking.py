"""`Client`: the SDK for code that waits. Thin; requests, retries and results are shared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from exspec.client.attempts import Access, ClientSettings, check_settings
from exspec.client.connection import Connection
from exspec.client.options import BatchOptions, GenerateOptions
from exspec.client.requests import (
    PromptInput,
    plan_batch,
    plan_detokenize,
    plan_generate,
    plan_tokenize,
)
from exspec.client.results import (
    BatchResult,
    GenerationResult,
    ServedModel,
    Tokenization,
    served_models,
)
from exspec.client.streams import BatchStream, GenerationStream
from exspec.client.waiting import DEFAULT_ADDRESS, READY_POLL_SECONDS, ReadyWait
from exspec.core.cluster import ClusterStatus
from exspec.core.errors import DeadlineExceededError, UnavailableError
from exspec.runtime.clock import monotonic
from exspec.v1 import generation_pb2 as pb
from exspec.v1 import registry_pb2
from exspec.wire.convert_cluster import status_from_message


class Client:
    """A client of one coordinator. Threads may share it; close it, or use it in a `with` block.

    `timeout` (seconds, for a whole call) and `connect_timeout` (until somebody answers) can make a
    call fail; at most `max_retries` more tries follow a failure that may pass. A generation whose
    coordinator is lost goes on by itself if one is back within `resume_timeout` seconds (0: never).
    `api_key` and `tls` (an `exspec.TlsConfig`; None is plain text) are what the coordinator asks
    for. Every error is an `exspec.ExspecError` and carries the request id.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 600.0,
        connect_timeout: float = 5.0,
        max_retries: int = 2,
        resume_timeout: float = 60.0,
        **access: Unpack[Access],
    ) -> None:
        settings = ClientSettings(
            address or DEFAULT_ADDRESS,
            timeout,
            connect_timeout,
            max_retries,
            resume_timeout,
            **access,
        )
        self._connection = Connection(check_settings(settings), monotonic)

    @property
    def address(self) -> str:
        """host:port of the coordinator."""
        return self._connection.settings.address

    def generate(self, prompt: PromptInput, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """Generate, and wait for the whole. Keywords: see `GenerateOptions`."""
        with self.stream(prompt, **options) as stream:
            return stream.final()

    def stream(self, prompt: PromptInput, **options: Unpack[GenerateOptions]) -> GenerationStream:
        """Generate, event by event. The request is sent with the first event that is asked for."""
        return GenerationStream(self._connection, plan_generate(prompt, options))

    def generate_batch(
        self, prompts: Sequence[PromptInput], **options: Unpack[BatchOptions]
    ) -> BatchResult:
        """Generate for several prompts in one call; a prompt that fails has its error instead.

        Keywords: see `BatchOptions`.
        """
        with self.stream_batch(prompts, **options) as stream:
            return stream.final()

    def stream_batch(
        self, prompts: Sequence[PromptInput], **options: Unpack[BatchOptions]
    ) -> BatchStream:
        """Generate for several prompts in one call: (index, event) as they come."""
        return BatchStream(self._connection, plan_batch(prompts, options))

    def tokenize(
        self, prompt: PromptInput, *, model: str = "", timeout: float | None = None
    ) -> Tokenization:
        """Text or chat to token ids, exactly as `generate` would."""
        request = plan_tokenize(prompt, model)
        attempts = self._connection.attempts("", timeout)
        answer = self._connection.call(self._connection.stubs.tokenize, request, attempts)
        return Tokenization(tuple(answer.token_ids), answer.text)

    def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", timeout: float | None = None
    ) -> str:
        """Token ids to text, without special tokens."""
        request = plan_detokenize(token_ids, model)
        attempts = self._connection.attempts("", timeout)
        return self._connection.call(self._connection.stubs.detokenize, request, attempts).text

    def list_models(self, *, timeout: float | None = None) -> tuple[ServedModel, ...]:
        """Models that can be asked for; empty while no target worker has joined."""
        request = pb.ListModelsRequest()
        attempts = self._connection.attempts("", timeout)
        answer = self._connection.call(self._connection.stubs.list_models, request, attempts)
        return served_models(answer.models)

    def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Workers, queue and totals."""
        request = registry_pb2.GetClusterStatusRequest()
        attempts = self._connection.attempts("", timeout)
        answer = self._connection.call(self._connection.stubs.cluster_status, request, attempts)
        return status_from_message(answer)

    def drain_worker(self, worker_id: str, *, timeout: float | None = None) -> int:
        """Let a worker go: no new rows at once, the rest is moved, then it stops by itself.

        Returns how many sequences were moved, once none is left. Asked again it goes on waiting.
        """
        request = registry_pb2.DrainWorkerRequest(worker_id=worker_id)
        attempts = self._connection.attempts("", timeout)
        answer = self._connection.call(self._connection.stubs.drain_worker, request, attempts)
        return answer.num_moved_sequences

    def wait_until_ready(self, timeout: float = 60.0) -> ClusterStatus:
        """Wait until requests can be served; UnavailableError says what is missing if they cannot.

        A coordinator that cannot be reached yet is waited for, too.
        """
        wait = ReadyWait(self.address, timeout, monotonic)
        while True:
            try:
                status = self.cluster_status(timeout=wait.poll_timeout())
            except (UnavailableError, DeadlineExceededError) as error:
                wait.note_error(error)
            else:
                if wait.is_over(status):
                    return status
            time.sleep(READY_POLL_SECONDS)

    def close(self) -> None:
        """Drop the connection; running calls end with RequestCancelledError, later ones are refused
        with RuntimeError.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
