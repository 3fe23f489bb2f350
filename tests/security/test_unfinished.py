"""Calls whose message does not come: strangers are told at once, others are not waited for long."""

from __future__ import annotations

import grpc
import pytest

from exspec.core.peer_roles import PeerRole
from exspec.wire import interceptor
from exspec.wire.channel import open_aio_channel
from tests.security.security_world import (
    DRAIN_WORKER,
    GENERATE,
    GENEROUS_SECONDS,
    HEALTH,
    KEY,
    LIST_MODELS,
    bearer,
)


async def _silent_call(address, method, tls, metadata=()):
    """How a call ends that sends neither a message nor the end of its messages."""
    async with open_aio_channel(address, tls) as channel:
        call = channel.stream_stream(method)(timeout=GENEROUS_SECONDS, metadata=metadata)
        code, details = await call.code(), await call.details()
        return code.name, details


@pytest.mark.parametrize("method", [LIST_MODELS, GENERATE])
async def test_a_stranger_is_refused_before_any_of_its_message_is_held(world, method):
    code, _ = await _silent_call(world.client_address, method, world.client_tls)
    assert code == "UNAUTHENTICATED"


async def test_a_wrong_role_is_refused_before_any_of_its_message_is_held(world, certificates):
    worker = certificates.files(PeerRole.WORKER).as_peer_of(PeerRole.COORDINATOR)
    code, _ = await _silent_call(world.cluster_address, DRAIN_WORKER, worker)
    assert code == "PERMISSION_DENIED"


@pytest.mark.parametrize("method", [LIST_MODELS, GENERATE, HEALTH])
async def test_a_message_is_not_waited_for_without_end(world, monkeypatch, method):
    monkeypatch.setattr(interceptor, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(interceptor, "UNGUARDED_REQUEST_SECONDS", 0.05)
    code, details = await _silent_call(world.client_address, method, world.client_tls, bearer(KEY))
    assert (code, "did not arrive" in details) == ("DEADLINE_EXCEEDED", True)


async def test_a_call_that_ends_without_a_message_is_the_callers_fault(world):
    async with open_aio_channel(world.client_address, world.client_tls) as channel:
        call = channel.stream_stream(LIST_MODELS)(timeout=GENEROUS_SECONDS, metadata=bearer(KEY))
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
