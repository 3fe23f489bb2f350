"""Options of the whole test run, and what all of it shares."""

from __future__ import annotations

import pytest

from tests.chaos.forks import Zygote


def pytest_addoption(parser):
    """How thorough the chaos tests are."""
    parser.addoption(
        "--chaos",
        choices=["brief", "full"],
        default="brief",
        help="full: kill workers in all rounds of a generation, and draw many courses of faults",
    )


@pytest.fixture(scope="session")
def zygote():
    """A process that holds torch and forks workers."""
    with Zygote() as made:
        yield made
