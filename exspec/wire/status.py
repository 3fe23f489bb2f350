"""One table between our errors and gRPC statuses, used at both ends. Nothing else decides codes.

A status carries `google.rpc.ErrorInfo` (reason = class of the error), and where they apply
`BadRequest` (the field at fault), `RetryInfo` and `RequestInfo`.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import (  # pyright: ignore[reportMissingTypeStubs]
    code_pb2,
    error_details_pb2,
    status_pb2,
)
from grpc_status import rpc_status as untyped_rpc_status

from exspec.core import errors

ERROR_DOMAIN = "exspec"

rpc_status = cast("Any", untyped_rpc_status)

# Most specific first: the first class that fits decides.
_CODES: tuple[tuple[type[errors.ExspecError], int], ...] = (
    (errors.ModelNotFoundError, code_pb2.NOT_FOUND),
    (errors.UnsupportedModelError, code_pb2.FAILED_PRECONDITION),
    (errors.ResumeMismatchError, code_pb2.FAILED_PRECONDITION),
    (errors.AuthenticationError, code_pb2.UNAUTHENTICATED),
    (errors.PermissionDeniedError, code_pb2.PERMISSION_DENIED),
    (errors.CallerError, code_pb2.INVALID_ARGUMENT),
    (errors.IncompatibleWorkerError, code_pb2.FAILED_PRECONDITION),
    (errors.ProtocolError, code_pb2.INVALID_ARGUMENT),
    (errors.WorkerLostError, code_pb2.ABORTED),
    (errors.PeerError, code_pb2.UNAVAILABLE),
    (errors.QueueFullError, code_pb2.RESOURCE_EXHAUSTED),
    (errors.SlowReaderError, code_pb2.RESOURCE_EXHAUSTED),
    (errors.CapacityError, code_pb2.UNAVAILABLE),
    (errors.DeadlineExceededError, code_pb2.DEADLINE_EXCEEDED),
    (errors.RequestCancelledError, code_pb2.CANCELLED),
)

# What a status without our details becomes, e.g. one made by the gRPC library itself.
_CLASSES: dict[int, type[errors.ExspecError]] = {
    code_pb2.INVALID_ARGUMENT: errors.InvalidRequestError,
    code_pb2.OUT_OF_RANGE: errors.InvalidRequestError,
    code_pb2.NOT_FOUND: errors.ModelNotFoundError,
    code_pb2.FAILED_PRECONDITION: errors.IncompatibleWorkerError,
    # A full queue says so itself; without details it is the message that was too large.
    code_pb2.RESOURCE_EXHAUSTED: errors.InvalidRequestError,
    code_pb2.UNAVAILABLE: errors.UnavailableError,
    code_pb2.ABORTED: errors.WorkerLostError,
    code_pb2.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    code_pb2.CANCELLED: errors.RequestCancelledError,
    code_pb2.UNIMPLEMENTED: errors.ProtocolError,
    code_pb2.UNAUTHENTICATED: errors.AuthenticationError,
    code_pb2.PERMISSION_DENIED: errors.PermissionDeniedError,
}

_BY_NAME: dict[str, type[errors.ExspecError]] = {
    value.__name__: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.ExspecError)
}


class FailedCall(Protocol):
    """What `grpc.RpcError` and `grpc.aio.AioRpcError` have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...


MAX_ERROR_BYTES = 1000
"""Bound of an error's message. Statuses travel as HTTP headers, where a few kilobytes are refused
by the receiver, and the message travels three times, once of them percent-encoded."""


def code_of(error: errors.ExspecError) -> int:
    """The `google.rpc.Code` of an error."""
    for error_class, code in _CODES:
        if isinstance(error, error_class):
            return code
    return code_pb2.INTERNAL


def to_status(error: errors.ExspecError) -> grpc.Status:
    """The gRPC status of an error, with details, for `context.abort_with_status`."""
    message = bounded(error.message)
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=type(error).__name__, domain=ERROR_DOMAIN)
    ]
    if isinstance(error, errors.InvalidRequestError) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.CapacityError) and error.retry_after_seconds:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after_seconds * 1000))
        details.append(retry)
    if error.request_id:
        details.append(error_details_pb2.RequestInfo(request_id=error.request_id))
    status = status_pb2.Status(code=code_of(error), message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return rpc_status.to_status(status)


def from_call(call: FailedCall) -> errors.ExspecError:
    """The error a failed call carries; the nearest class for a status the library made itself."""
    code: int = call.code().value[0]
    message = call.details() or call.code().name
    try:
        status: status_pb2.Status | None = rpc_status.from_call(call)
    except ValueError:
        status = None
    if status is None:
        return build_error("", code, message)
    return _from_details(status)


def build_error(
    reason: str, code: int, message: str, *, field: str = "", retry_after_seconds: float = 0.0
) -> errors.ExspecError:
    """An error of class `reason`; of the nearest class to `code` when the name is not ours."""
    error_class = _BY_NAME.get(reason) or _CLASSES.get(code, errors.InternalError)
    if issubclass(error_class, errors.InvalidRequestError):
        return error_class(message, field=field)
    if issubclass(error_class, errors.CapacityError):
        return error_class(message, retry_after_seconds=retry_after_seconds)
    return error_class(message)


def bounded(message: str) -> str:
    """A message short enough for a status, cut if need be."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MAX_ERROR_BYTES:
        return encoded.decode()
    return encoded[:MAX_ERROR_BYTES].decode("utf-8", "ignore") + " …"


def _from_details(status: status_pb2.Status) -> errors.ExspecError:
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.RequestInfo()
    for detail in status.details:
        for message in (info, bad, retry, request):
            detail.Unpack(message)  # does nothing when the type is another
    field = bad.field_violations[0].field if bad.field_violations else ""
    error = build_error(
        info.reason,
        status.code,
        status.message,
        field=field,
        retry_after_seconds=retry.retry_delay.ToMilliseconds() / 1000,
    )
    error.request_id = request.request_id
    return error
