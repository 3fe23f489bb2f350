"""The edge of a server: bytes that are no message, guards of single methods, plain text."""

# ruff: noqa: N802 - method names are the proto's
from __future__ import annotations

import logging

import grpc.aio
import pytest

from coordinator.servers import bind_ports
from coordinator.settings import CoordinatorSettings
from exspec.core.api_keys import add_key
from exspec.core.errors import InvalidRequestError, PermissionDeniedError
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import monotonic
from exspec.runtime.settings import WorkerSettings, load_settings
from exspec.v1 import draft_pb2_grpc, target_pb2, target_pb2_grpc
from exspec.wire.auth import MethodGuard, RoleGuard
from exspec.wire.channel import open_aio_channel
from exspec.wire.server import RpcServer
from exspec.wire.status import from_call
from exspec.wire.worker_process import listen
from tests.security.security_world import flags

SERVICE = "exspec.v1.TargetService"
BROKEN = (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0f" * 9)


class Echo(target_pb2_grpc.TargetServiceServicer):
    """Answers whatever is a message."""

    async def GetTokenizer(self, request, context):
        return target_pb2.GetTokenizerResponse(tokenizer_json="{}")

    async def Verify(self, request_iterator, context):
        async for request in request_iterator:
            yield target_pb2.VerifyResponse(batch_id=request.batch_id)


@pytest.fixture
async def channel():
    server = RpcServer([SERVICE])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    target_pb2_grpc.add_TargetServiceServicer_to_server(Echo(), server.grpc_server)
    await server.start()
    async with open_aio_channel(address) as opened:
        yield opened
    await server.stop(0)


@pytest.mark.parametrize("raw", BROKEN)
async def test_bytes_that_are_no_message_are_the_callers_fault(channel, raw, caplog):
    caplog.set_level(logging.WARNING)
    unary = channel.unary_unary(f"/{SERVICE}/GetTokenizer")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(raw, timeout=20)
    error = from_call(caught.value)
    assert type(error) is InvalidRequestError
    assert (error.field, "GetTokenizer" in error.message) == ("request", True)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


@pytest.mark.parametrize("raw", BROKEN)
async def test_a_stream_ends_with_the_first_message_that_is_none(channel, raw, caplog):
    caplog.set_level(logging.WARNING)
    good = target_pb2.VerifyRequest(batch_id=7)

    call = channel.stream_stream(f"/{SERVICE}/Verify")(timeout=20)
    await call.write(good.SerializeToString())
    assert target_pb2.VerifyResponse.FromString(await call.read()).batch_id == 7
    await call.write(raw)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_call(caught.value)
    assert type(error) is InvalidRequestError
    assert "Verify" in error.message
    assert not caplog.records


async def test_bytes_that_are_no_message_leave_a_draft_worker_well():
    """Its inbox is read on a task of its own."""
    from exspec.runtime.worker_thread import WorkerThread
    from tests.security.security_world import DRAFT, outcome

    class Released:
        num_ahead = 0

    class Drafter:
        ahead = Released()

        def forget(self, held):
            pass

    from draft_worker.servicer import DraftServicer

    thread = WorkerThread("draft")
    server = RpcServer(["exspec.v1.DraftService"])
    address = server.bind("127.0.0.1", 0, allow_insecure=False)
    servicer = DraftServicer(thread, monotonic, "i")
    servicer.open(Drafter())
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc_server)
    await server.start()
    assert await outcome(address, DRAFT, None, request=b"\xff\xff") == "INVALID_ARGUMENT"
    await server.stop(0)
    thread.close()


class _Call:
    def __init__(self, *names):
        self._names = names

    def auth_context(self):
        return {"peer_dns": [name.encode() for name in self._names]}

    def peer(self):
        return "ipv4:1.2.3.4:5"

    def invocation_metadata(self):
        return ()


def test_roles_are_whole_names_of_the_certificate():
    guard = RoleGuard({"a.S": {PeerRole.WORKER}})
    worker = PeerRole.WORKER.value
    guard("/a.S/M", _Call("x", worker))
    for names in (
        (), ("x",), (worker + ".evil.org",), ("x" + worker,), (PeerRole.OPERATOR.value,),
    ):  # fmt: skip
        with pytest.raises(PermissionDeniedError, match=worker):
            guard("/a.S/M", _Call(*names))
    with pytest.raises(PermissionDeniedError, match="nobody"):
        guard("/a.Other/M", _Call(worker))


def test_one_method_of_a_service_can_be_left_open():
    guard = MethodGuard("a.S", ["Look"], "elsewhere")
    for method in ("/a.S/Look", "/a.Sx/Change", "/b/Change"):
        guard(method, _Call())
    with pytest.raises(PermissionDeniedError, match="elsewhere"):
        guard("/a.S/Change", _Call())


def _settings(**values):
    return CoordinatorSettings(_cli_parse_args=[], **({"port": 0, "cluster_port": 0} | values))


async def test_nothing_is_bound_beyond_loopback_in_plain_text_unless_asked_for(
    certificates, tmp_path, caplog
):
    keys = tmp_path / "keys"
    keys.write_text(add_key("", "alice", "k"))
    for values in ({}, {"api_keys_file": str(keys)}):
        with pytest.raises(InvalidRequestError, match="--allow-insecure-bind") as caught:
            bind_ports(_settings(host="0.0.0.0", **values), monotonic)
        assert caught.value.field == "host"
    told = _settings(host="0.0.0.0", allow_insecure_bind=True, api_keys_file=str(keys))
    asked_for = bind_ports(told, monotonic)
    assert "keys can be read on the way" in caplog.text
    assert all(address.startswith("0.0.0.0:") for address in asked_for.addresses)
    tls = flags(certificates.files(PeerRole.COORDINATOR))
    assert len(bind_ports(_settings(host="0.0.0.0", **tls), monotonic).addresses) == 2
    worker = WorkerSettings(_cli_parse_args=[], host="0.0.0.0")
    with pytest.raises(InvalidRequestError, match="--ssl-certfile"):
        listen(SERVICE, worker, None)


@pytest.mark.parametrize(
    ("flags_given", "names"),
    [
        (["--ssl-certfile", "c"], "--ssl-keyfile"),
        (["--ssl-ca-certs", "c"], "--ssl-certfile"),
        (["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certs", "a"], "--cluster-port"),
        (["--api-keys-file", "k"], "--cluster-port"),
        (["--port", "7", "--cluster-port", "7"], "--cluster-port"),
    ],
)
def test_settings_that_do_not_go_together_are_named(capsys, flags_given, names):
    with pytest.raises(SystemExit) as caught:
        load_settings(CoordinatorSettings, flags_given)
    assert caught.value.code == 2
    assert names in capsys.readouterr().err


def test_reflection_follows_tls_unless_it_is_told():
    tls = ["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certs", "a"]
    for told, expected in (
        ([], True), (["--no-reflection"], False), (tls, False), ([*tls, "--reflection"], True),
    ):  # fmt: skip
        assert load_settings(WorkerSettings, told).has_reflection is expected
