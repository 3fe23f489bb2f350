"""Certificates are made once; time scales and toy models are those of the coordinator's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in ("coordinator", "workers"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Retries and looks at files that are too slow for tests."""
    from coordinator import links, service
    from exspec.runtime import watched
    from exspec.wire import registration

    monkeypatch.setattr(links, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(watched, "CHECK_SECONDS", 0.0)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    from tests.security.security_world import make_certificates

    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def world(certificates, tmp_path):
    """A coordinator with TLS and keys; workers are up to the test."""
    from tests.security.security_world import secure_world

    async with secure_world(certificates, tmp_path) as made:
        yield made
