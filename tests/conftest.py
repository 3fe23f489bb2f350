"""Options of the whole test run."""

from __future__ import annotations


def pytest_addoption(parser):
    """How thorough the chaos tests are."""
    parser.addoption(
        "--chaos",
        choices=["brief", "full"],
        default="brief",
        help="full: kill workers in all rounds of a generation, and draw many courses of faults",
    )
