"""Errors cross the wire: the class that is raised at the server is the class the caller sees."""

from __future__ import annotations

import inspect

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from wire_servers import RaisingServicer, serving

from exspec.core import errors
from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel, open_channel
from exspec.wire.status import build_error, code_of, from_call, rpc_status, to_status

REQUEST = target_pb2.GetTokenizerRequest()


def _example(error_class: type[errors.ExspecError]) -> errors.ExspecError:
    message = f"a {error_class.__name__}: ü, 100 %\nand a second line"
    if issubclass(error_class, errors.InvalidRequestError):
        return error_class(message, field="max_tokens", request_id="req-1")
    if issubclass(error_class, errors.CapacityError):
        return error_class(message, retry_after_seconds=2.25, request_id="req-1")
    return error_class(message, request_id="req-1")


CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.ExspecError)
]

CODES = {
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ContextLengthError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.IncompatibleWorkerError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RequestCancelledError: grpc.StatusCode.CANCELLED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


async def _failure(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await target_pb2_grpc.TargetServiceStub(channel).GetTokenizer(REQUEST)
    return caught.value


async def _stream_failure(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    async def one():
        yield target_pb2.VerifyRequest(batch_id=7)

    call = target_pb2_grpc.TargetServiceStub(channel).Verify(one())
    assert (await call.read()).batch_id == 7
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


async def test_every_class_comes_back_as_itself():
    raised: list[errors.ExspecError] = []
    async with serving(RaisingServicer(lambda: raised[-1])) as (_server, channel):
        for error_class in CLASSES:
            raised.append(_example(error_class))
            for call in (_failure, _stream_failure):
                status = await call(channel)
                error = from_call(status)
                assert type(error) is error_class
                assert error.message == raised[-1].message
                assert error.request_id == "req-1"
                for name in ("field", "retry_after_seconds"):
                    assert getattr(error, name, None) == getattr(raised[-1], name, None)
                assert status.code() is CODES.get(error_class, status.code())


async def test_an_error_without_a_request_id_has_none_at_the_caller():
    servicer = RaisingServicer(lambda: errors.UnavailableError("not now"))
    async with serving(servicer) as (_server, channel):
        assert from_call(await _failure(channel)).request_id == ""


@pytest.mark.parametrize("character", ["x", "ü", "😀"])
async def test_an_error_may_quote_anything_however_long(character):
    """Statuses travel as HTTP headers, which receivers bound to a few kilobytes."""
    error = errors.InvalidRequestError(character * 100_000, field="model", request_id="r" * 128)
    async with serving(RaisingServicer(lambda: error)) as (_server, channel):
        back = from_call(await _failure(channel))
    assert type(back) is errors.InvalidRequestError
    assert (back.field, back.request_id) == ("model", "r" * 128)
    assert back.message.startswith(character * 200)
    assert back.message.endswith("…")


async def test_a_bug_becomes_internal_with_an_id_that_the_log_has_and_no_traceback(caplog):
    def fail():
        raise KeyError("a secret of the server")

    async with serving(RaisingServicer(fail)) as (_server, channel):
        for call in (_failure, _stream_failure):
            caplog.clear()
            status = await call(channel)
            assert status.code() is grpc.StatusCode.INTERNAL
            assert type(from_call(status)) is errors.InternalError
            text = str(status.details())
            assert "secret" not in text
            assert "Traceback" not in text
            error_id = text.split()[2].rstrip(";")
            (record,) = [r for r in caplog.records if error_id in r.getMessage()]
            assert record.exc_info


async def test_statuses_the_library_makes_itself():
    async with serving(RaisingServicer(lambda: None)) as (server, channel):
        unknown = channel.unary_unary("/exspec.v1.TargetService/NoSuchThing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unknown(b"")
        assert type(from_call(caught.value)) is errors.ProtocolError
        call = target_pb2_grpc.TargetServiceStub(channel).GetTokenizer(REQUEST, timeout=-1.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert type(from_call(caught.value)) is errors.DeadlineExceededError
        await server.stop(0)
        assert type(from_call(await _failure(channel))) is errors.UnavailableError


async def test_nobody_there_is_unavailable():
    async with open_aio_channel("127.0.0.1:1") as channel:
        assert type(from_call(await _failure(channel))) is errors.UnavailableError


def test_a_blocking_call_carries_the_same_error():
    with open_channel("127.0.0.1:1") as channel, pytest.raises(grpc.RpcError) as caught:
        target_pb2_grpc.TargetServiceStub(channel).GetTokenizer(REQUEST)
    assert type(from_call(caught.value)) is errors.UnavailableError  # type: ignore[arg-type]


def test_a_class_that_is_not_ours_becomes_the_nearest_one():
    assert type(build_error("NewerError", 3, "m")) is errors.InvalidRequestError
    assert type(build_error("NewerError", 2, "m")) is errors.InternalError
    assert type(build_error("", 14, "m")) is errors.UnavailableError


def test_whatever_is_exhausted_says_when_to_retry():
    for error in CLASSES:
        if code_of(error("x")) == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
            status = rpc_status.from_call(_Failed(to_status(error("x"))))
            assert any(
                detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details
            )


class _Failed:
    """A call that ended with a status."""

    def __init__(self, status):
        self._status = status

    def code(self):
        return self._status.code

    def details(self):
        return self._status.details

    def trailing_metadata(self):
        return self._status.trailing_metadata
