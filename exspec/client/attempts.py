"""One call's deadline, its retries, and what its failures are called. Decides; never waits itself.

Only failures that a later try can mend are retried (UnavailableError, QueueFullError), only before
the first event, and never past the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

import grpc

from exspec.core.errors import (
    DeadlineExceededError,
    ExspecError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    UnavailableError,
)
from exspec.runtime.clock import Clock
from exspec.wire.auth import AUTHORIZATION
from exspec.wire.status import FailedCall, from_call
from exspec.wire.tls import TlsConfig

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 8.0
LONGEST_TIMEOUT_SECONDS = 30 * 24 * 3600.0
"""gRPC cannot count further; nobody waits longer."""
_DETAILS_KEY = "grpc-status-details-bin"
_CONNECT_FAILURES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves: seconds per call and for connecting, retries, and how it is let in."""

    address: str
    timeout: float
    connect_timeout: float
    max_retries: int
    api_key: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.api_key is None else ((AUTHORIZATION, f"Bearer {self.api_key}"),)


class Access(TypedDict, total=False):
    """How a client is let in: what `Client` and `AsyncClient` take beside the address."""

    api_key: str | None
    tls: TlsConfig | None


class Attempts:
    """The tries of one call. Owns how many were made and when time runs out."""

    def __init__(
        self, settings: ClientSettings, clock: Clock, request_id: str, timeout: float | None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._request_id = request_id
        wanted = settings.timeout if timeout is None else timeout
        self._timeout = min(wanted, LONGEST_TIMEOUT_SECONDS)
        self._deadline = clock() + self._timeout
        self._num_failures = 0

    def remaining(self) -> float:
        """Seconds left; DeadlineExceededError when none are."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise self._deadline_error()
        return left

    def connect_seconds(self) -> float:
        """Seconds that connecting may take."""
        return min(self._settings.connect_timeout, self.remaining())

    def error_of(self, failure: grpc.RpcError) -> ExspecError:
        """The error a failed call carries, with its request id, and the address if unreachable."""
        call = cast("FailedCall", failure)
        error = from_call(call)
        if is_made_by_library(call):
            if isinstance(error, UnavailableError):
                error = self._unreachable(error.message)
            elif isinstance(error, DeadlineExceededError):
                error = self._deadline_error()
        error.request_id = error.request_id or self._request_id
        return error

    def connect_error(self, failure: grpc.RpcError) -> ExspecError | None:
        """Why nobody answers at the address; None when somebody does, whatever the answer."""
        call = cast("FailedCall", failure)
        if call.code() not in _CONNECT_FAILURES or not is_made_by_library(call):
            return None
        self.remaining()
        if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._unreachable(f"no answer within {self._settings.connect_timeout:g} s")
        return self._unreachable(call.details() or "")

    def pause_after(self, error: ExspecError) -> float:
        """Seconds to wait before the next try; raises `error` when there must not be one."""
        if not isinstance(error, UnavailableError | QueueFullError):
            raise error
        pause = min(FIRST_BACKOFF_SECONDS * 2**self._num_failures, MAX_BACKOFF_SECONDS)
        if isinstance(error, QueueFullError):
            pause = max(pause, error.retry_after_seconds)
        self._num_failures += 1
        if self._num_failures > self._settings.max_retries or pause >= self._left():
            raise error
        return pause

    def cancelled_error(self) -> RequestCancelledError:
        """What a call that its own caller cancelled ends with."""
        return RequestCancelledError("the caller cancelled it", request_id=self._request_id)

    def _left(self) -> float:
        return self._deadline - self._clock()

    def _unreachable(self, cause: str) -> UnavailableError:
        return UnavailableError(
            f"cannot reach the coordinator at {self._settings.address}: {cause}",
            request_id=self._request_id,
        )

    def _deadline_error(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"no result within {self._timeout:g} s", request_id=self._request_id
        )


def is_made_by_library(call: FailedCall) -> bool:
    """Whether gRPC itself made the status (no connection, deadline), not a server of ours."""
    trailers: Callable[[], Any] = cast("Any", call).trailing_metadata
    return all(key != _DETAILS_KEY for key, _ in trailers() or ())


def check_settings(settings: ClientSettings) -> ClientSettings:
    """The settings, if they make sense; ValueError otherwise.

    Raises:
        InvalidRequestError: the API key cannot be one. The key itself is not told.
    """
    if settings.timeout <= 0 or settings.connect_timeout <= 0:
        raise ValueError("timeout and connect_timeout must be more than 0 seconds")
    if settings.max_retries < 0:
        raise ValueError("max_retries must be 0 or more")
    key = settings.api_key
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise InvalidRequestError(
            "an API key is printable ASCII without spaces, and not empty", field="api_key"
        )
    return settings
