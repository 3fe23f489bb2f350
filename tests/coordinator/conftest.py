"""Time scales of tests, and the way to the toy model of the workers' tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Retries and ticks that are too slow for tests."""
    from coordinator import driver, links, service
    from exspec.wire import registration

    monkeypatch.setattr(driver, "REFUSAL_SECONDS", 0.05)
    monkeypatch.setattr(links, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(service, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.05)
