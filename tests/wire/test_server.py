"""The server every service runs on: where it listens, health, reflection, streams that end."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from wire_servers import SERVICE, RaisingServicer, serving

from exspec.core.errors import InvalidRequestError, UnavailableError
from exspec.runtime.addresses import is_loopback
from exspec.v1 import target_pb2, target_pb2_grpc
from exspec.wire.channel import open_aio_channel
from exspec.wire.health import probe
from exspec.wire.interceptor import write_all
from exspec.wire.process import write_port_file
from exspec.wire.server import (
    RpcServer,
    join_address,
    reachable_address,
)
from exspec.wire.status import from_call

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _quiet() -> RaisingServicer:
    return RaisingServicer(lambda: None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "10.0.0.1", "", "unix:/x"])
async def test_plain_text_beyond_loopback_is_refused_unless_asked_for(host):
    server = RpcServer([SERVICE])
    with pytest.raises(InvalidRequestError, match="--allow-insecure-bind") as caught:
        server.bind(host, 0, allow_insecure=False)
    assert caught.value.field == "host"


async def test_plain_text_beyond_loopback_can_be_asked_for():
    server = RpcServer([SERVICE])
    address = server.bind("0.0.0.0", 0, allow_insecure=True)
    assert address.startswith("0.0.0.0:")
    assert not reachable_address(address).startswith("0.0.0.0")


async def test_a_port_in_use_is_reported_and_not_shared():
    async with serving(_quiet()) as (server, _channel):
        second = RpcServer([SERVICE])
        taken = server.bind("127.0.0.1", 0, allow_insecure=False)
        port = int(taken.rpartition(":")[2])
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            second.bind("127.0.0.1", port, allow_insecure=False)


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [("127.0.0.1", 5, "127.0.0.1:5"), ("::1", 5, "[::1]:5"), ("[::1]", 5, "[::1]:5")],
)
def test_addresses_are_joined(host, port, address):
    assert join_address(host, port) == address
    assert is_loopback(host)
    assert reachable_address(address) == address


async def test_alive_is_not_ready():
    async with serving(_quiet()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        assert (await status(""), await status(SERVICE)) == (SERVING, NOT_SERVING)
        await server.set_ready(is_ready=True)
        assert (await status(""), await status(SERVICE)) == (SERVING, SERVING)
        await server.set_ready(is_ready=False)
        assert (await status(""), await status(SERVICE)) == (SERVING, NOT_SERVING)


async def test_watchers_see_changes():
    async with serving(_quiet()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == NOT_SERVING
        await server.set_ready(is_ready=True)
        assert (await asyncio.wait_for(watch.read(), 5)).status == SERVING
        watch.cancel()


async def test_the_probe_asks_for_one_service():
    server = RpcServer([SERVICE])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    await server.start()

    async def ask(service: str) -> bool:
        return await asyncio.to_thread(probe, address, service, timeout_seconds=5)

    assert (await ask(""), await ask(SERVICE), await ask("other")) == (True, False, False)
    await server.stop(0)
    assert not await ask("")


async def test_reflection_lists_the_services():
    async def ask():
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    async with serving(_quiet()) as (_server, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (reply,) = [reply async for reply in stub.ServerReflectionInfo(ask())]
    names = {service.name for service in reply.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_a_caller_that_leaves_closes_the_stream():
    servicer = _quiet()
    async with serving(servicer) as (_server, channel):
        call = target_pb2_grpc.TargetServiceStub(channel).Verify()
        await call.write(target_pb2.VerifyRequest(batch_id=1))
        assert (await call.read()).batch_id == 1
        assert not servicer.closed.is_set()
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), 5)


async def test_a_caller_that_leaves_while_it_is_sent_something_closes_the_handler():
    """Not the collector: what a `finally` of the handler frees would wait for it."""
    closed = []

    class Gone:
        async def write(self, response):
            raise asyncio.CancelledError

    async def handler(request, context):
        try:
            yield "response"
        finally:
            closed.append(request)

    kept: list[object] = []

    def keep(request, context):
        kept.append(handler(request, context))
        return kept[-1]

    with pytest.raises(asyncio.CancelledError):
        await write_all(keep("request", None), Gone())
    assert closed == ["request"]


async def test_messages_may_be_megabytes():
    class Big(RaisingServicer):
        async def GetTokenizer(self, request, context):
            return target_pb2.GetTokenizerResponse(tokenizer_json="x" * (20 << 20))

    async with serving(Big(lambda: None)) as (_server, channel):
        stub: grpc.aio.UnaryUnaryCall = target_pb2_grpc.TargetServiceStub(channel)
        reply = await stub.GetTokenizer(target_pb2.GetTokenizerRequest())
    assert len(reply.tokenizer_json) == 20 << 20


def test_port_files_of_two_services_do_not_meet(tmp_path):
    for name in ("port.target", "port.draft"):
        write_port_file(str(tmp_path / name), f"127.0.0.1:{len(name)}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["port.draft", "port.target"]
    (tmp_path / "port.partial").write_text("mine")
    write_port_file(str(tmp_path / "port.target"), "127.0.0.1:1")
    assert (tmp_path / "port.partial").read_text() == "mine"
    write_port_file("", "127.0.0.1:1")


async def test_a_message_that_is_too_large_is_the_callers_fault():
    server = RpcServer([SERVICE], max_request_bytes=1000)
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    await server.start()
    try:
        async with open_aio_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(health_pb2.HealthCheckRequest(service="m" * 2000))
            error = from_call(caught.value)
            assert isinstance(error, InvalidRequestError)
            assert "larger than max" in error.message
    finally:
        await server.stop(0)


@pytest.mark.parametrize("address", ["", "host", ":5", "host:", "host:0", "host:65536", "host:x"])
def test_an_address_without_a_port_there_can_be_is_refused(address):
    with pytest.raises(InvalidRequestError, match="host:port") as caught:
        open_aio_channel(address)
    assert caught.value.field == "address"
