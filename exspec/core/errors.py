"""The error tree of the whole product.

One tree serves both ends: a server raises one of these, `exspec.wire.status` turns it into a gRPC
status, and the SDK raises the same class again at the caller. Only error classes live here.

    ExspecError
    ├── CallerError                 the request is at fault; repeating it is useless
    │   ├── InvalidRequestError     a field is out of bounds (names the field)
    │   │   └── ContextLengthError  prompt and max_tokens do not fit the model's context
    │   ├── ResumeMismatchError     what is to be resumed was made by another model, or prompt
    │   ├── ModelNotFoundError      no such model is served, or its files are missing
    │   ├── UnsupportedModelError   the model cannot be served, for the reason given
    │   ├── AuthenticationError     the API key is missing, or not known
    │   └── PermissionDeniedError   who calls is known, and may not call this
    ├── PeerError                   a worker, or its answer, is at fault
    │   ├── WorkerLostError         a process died or stopped answering
    │   ├── ProtocolError           a message that makes no sense at this point
    │   └── IncompatibleWorkerError draft and target do not fit each other
    ├── CapacityError               try again later (carries retry_after_seconds)
    │   ├── QueueFullError          too many requests wait
    │   │   └── TooManyRequestsError    too many of them are this client's
    │   ├── SlowReaderError         the client left its events unread for too long
    │   └── UnavailableError        no worker can take the request now
    ├── DeadlineExceededError       the caller's time ran out
    ├── RequestCancelledError       the caller went away
    └── InternalError               our own bug; the server's log has it under the request id
"""

from __future__ import annotations


class ExspecError(Exception):
    """Root of the tree. `request_id` is empty until the request is known."""

    def __init__(self, message: str, *, request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message


class CallerError(ExspecError):
    """The request is at fault."""


class InvalidRequestError(CallerError):
    """A field of the request is out of bounds. `field` is its name in the public API."""

    def __init__(self, message: str, *, field: str = "", request_id: str = "") -> None:
        super().__init__(message, request_id=request_id)
        self.field = field


class ContextLengthError(InvalidRequestError):
    """The prompt, with what is to be generated, does not fit the context."""


class ResumeMismatchError(CallerError):
    """A generation cannot be resumed here: another model, or another prompt, made its tokens."""


class ModelNotFoundError(CallerError):
    """The named model is not served here, or its files cannot be found."""


class UnsupportedModelError(CallerError):
    """The model cannot be served exactly, for the reason in the message."""


class AuthenticationError(CallerError):
    """The API key is missing, or not one that is known."""


class PermissionDeniedError(CallerError):
    """The caller is known, and what was called is not for it."""


class PeerError(ExspecError):
    """A worker, or an answer of a worker, is at fault."""


class WorkerLostError(PeerError):
    """A worker process died, or its lease ran out."""


class ProtocolError(PeerError):
    """A message that makes no sense at this point of the protocol."""


class IncompatibleWorkerError(PeerError):
    """A worker's model or tokenizer does not fit the cluster."""


class CapacityError(ExspecError):
    """Nothing is wrong with the request; try again after `retry_after_seconds`.

    0 seconds: nothing is known about when, and what was under way cannot be resumed.
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float = 0.0, request_id: str = ""
    ) -> None:
        super().__init__(message, request_id=request_id)
        self.retry_after_seconds = retry_after_seconds


class _ExhaustedError(CapacityError):
    """A bound was reached that a later try may find free: never without a time to retry."""

    def __init__(
        self, message: str, *, retry_after_seconds: float = 1.0, request_id: str = ""
    ) -> None:
        super().__init__(
            message, retry_after_seconds=retry_after_seconds or 1.0, request_id=request_id
        )


class QueueFullError(_ExhaustedError):
    """The waiting queue is full."""


class TooManyRequestsError(QueueFullError):
    """One client has as many generations under way as it may."""


class SlowReaderError(_ExhaustedError):
    """The client left its events unread for too long, and was dropped."""


class UnavailableError(CapacityError):
    """No worker can take the request now, or the service cannot be reached."""


class DeadlineExceededError(ExspecError):
    """The caller's deadline passed before the request was done."""


class RequestCancelledError(ExspecError):
    """The caller cancelled the request."""


class InternalError(ExspecError):
    """Our own bug. The server's log holds the details under the request id."""
