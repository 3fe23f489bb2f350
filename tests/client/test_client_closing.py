"""A client that is closed, or a call that is cancelled, at the worst moment."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exspec import AsyncClient, Client, RequestCancelledError
from exspec.client.connection import EventCall
from exspec.client.courses import GenerationCourse
from exspec.client.requests import plan_generate


@pytest.mark.parametrize("method", ["generate", "cluster_status"])
@pytest.mark.parametrize("is_connected", [True, False])
def test_another_thread_closes_the_client_just_before_a_call(
    fake, monkeypatch, method, is_connected
):
    with Client(fake.address) as client:
        connection = client._connection
        connection._is_connected = is_connected
        make = connection.attempts

        def closing_attempts(*args):
            """Closes when it is asked how long the call about to be made may take."""
            attempts = make(*args)
            remaining = attempts.remaining
            attempts.remaining = lambda: (remaining(), client.close())[0]
            return attempts

        monkeypatch.setattr(connection, "attempts", closing_attempts)
        with pytest.raises(RequestCancelledError):
            client.generate("Hi") if method == "generate" else client.cluster_status()


@pytest.mark.parametrize("method", ["generate", "list_models"])
async def test_the_client_is_closed_as_the_coordinator_first_answers(fake, method):
    client = AsyncClient(fake.address)
    stubs = client._connection.stubs

    async def closing_after(*args, **options):
        answer = await stubs.list_models(*args, **options)
        await client.close()
        return answer

    client._connection._stubs = SimpleNamespace(list_models=closing_after, generate=stubs.generate)
    with pytest.raises(RequestCancelledError):
        await (client.generate("Hi") if method == "generate" else client.list_models())


def test_a_broken_call_is_dropped_while_another_thread_cancels_it(fake):
    cancelled = []
    seen = [SimpleNamespace(cancel=lambda: cancelled.append(True))]

    class Dropped(EventCall):
        """Has a running call the first time one looks only."""

        @property
        def _running(self):
            return seen.pop() if seen else None

        @_running.setter
        def _running(self, value):
            pass

    with Client(fake.address) as client:
        connection = client._connection
        course = GenerationCourse(plan_generate("Hi", {}))
        attempts = connection.attempts("mine", None)
        Dropped(connection, connection.stubs.generate, course, attempts).cancel()
    assert cancelled
