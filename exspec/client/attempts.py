"""One call's deadline, its retries, and what its failures are called. Decides; never waits itself.

Only failures that a later try can mend are retried (UnavailableError, QueueFullError), never past
the deadline. Before the first event a call is made again at most `max_retries` times. After it, a
coordinator that was lost (the connection broke, or it said itself when to come back) is waited for
up to `resume_timeout` seconds without news, and the call goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

import grpc

from exspec.client.courses import Course
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
MAX_RESUME_BACKOFF_SECONDS = 2.0
LONGEST_TIMEOUT_SECONDS = 30 * 24 * 3600.0
"""gRPC cannot count further; nobody waits longer."""
_DETAILS_KEY = "grpc-status-details-bin"
_CONNECT_FAILURES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves: seconds per call, for connecting and for resuming, retries, and how it
    is let in.
    """

    address: str
    timeout: float
    connect_timeout: float
    max_retries: int
    resume_timeout: float
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
        if math.isnan(wanted):
            raise InvalidRequestError("timeout must be a number, not NaN", field="timeout")
        self._timeout = min(wanted, LONGEST_TIMEOUT_SECONDS)
        self._deadline = clock() + self._timeout
        self._num_failures = 0
        self._lost_since: float | None = None
        self._num_losses = 0

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
            if is_lost(call):
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

    def pause_before_next(self, course: Course[Any, Any, Any], error: ExspecError) -> float:
        """Seconds to wait before a streaming call is made again; raises `error` if it must not be.

        What has arrived of it decides how.
        """
        if not course.has_begun:
            return self.pause_after(error)
        if not course.can_resume:
            raise error
        return self.pause_after_loss(error)

    def pause_after(self, error: ExspecError) -> float:
        """Seconds to wait before the next try; raises `error` when there must not be one."""
        if not isinstance(error, UnavailableError | QueueFullError):
            raise error
        pause = min(FIRST_BACKOFF_SECONDS * 2**self._num_failures, MAX_BACKOFF_SECONDS)
        pause = max(pause, error.retry_after_seconds)
        self._num_failures += 1
        if self._num_failures > self._settings.max_retries or pause >= self._left():
            raise error
        return pause

    def pause_after_loss(self, error: ExspecError) -> float:
        """Seconds to wait before a call that had begun goes on; raises `error` if it must not.

        What can be resumed says when; while it is waited for, whatever a later try can mend is
        waited for, too.
        """
        is_lost = isinstance(error, UnavailableError) and error.retry_after_seconds > 0
        is_mendable = isinstance(error, UnavailableError | QueueFullError)
        if not is_mendable or not (is_lost or self._lost_since is not None):
            raise error
        now = self._clock()
        if self._lost_since is None:
            self._lost_since, self._num_losses = now, 0
        pause = min(FIRST_BACKOFF_SECONDS * 2**self._num_losses, MAX_RESUME_BACKOFF_SECONDS)
        pause = max(pause, error.retry_after_seconds)
        self._num_losses += 1
        left = self._lost_since + self._settings.resume_timeout - now
        if pause >= min(left, self._left()):
            raise error
        return pause

    def note_progress(self) -> None:
        """An event came that had not come before."""
        self._lost_since = None

    def cancelled_error(self) -> RequestCancelledError:
        """What a call that its own caller cancelled ends with."""
        return RequestCancelledError("the caller cancelled it", request_id=self._request_id)

    def _left(self) -> float:
        return self._deadline - self._clock()

    def _unreachable(self, cause: str) -> UnavailableError:
        if self._settings.tls is None and "Socket closed" in cause:
            cause += "; if it speaks TLS, so must the client (tls=…, --ssl-ca-certs)"
        return UnavailableError(
            f"cannot reach the coordinator at {self._settings.address}: {cause}",
            retry_after_seconds=FIRST_BACKOFF_SECONDS,
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


def is_lost(call: FailedCall) -> bool:
    """Whether a status that gRPC itself made says that the connection, or its other end, broke."""
    code = call.code()
    if code is grpc.StatusCode.INTERNAL:
        return "RST_STREAM" in (call.details() or "")
    return code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)


def check_settings(settings: ClientSettings) -> ClientSettings:
    """The settings, if they make sense; ValueError otherwise.

    Raises:
        InvalidRequestError: the API key cannot be one. The key itself is not told.
    """
    if not (settings.timeout > 0 and settings.connect_timeout > 0):  # NaN is neither
        raise ValueError("timeout and connect_timeout must be more than 0 seconds")
    if not (settings.max_retries >= 0 and settings.resume_timeout >= 0):
        raise ValueError("max_retries and resume_timeout must be 0 or more")
    key = settings.api_key
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise InvalidRequestError(
            "an API key is printable ASCII without spaces, and not empty", field="api_key"
        )
    return settings
