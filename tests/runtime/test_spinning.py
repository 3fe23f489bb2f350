"""How long idle OpenMP threads spin, as the library that a worker loads reads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SHOW = (
    "from exspec.runtime.spinning import spin_briefly; spin_briefly(); import torch; "
    "print(torch.backends.openmp.is_available())"
)
_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def _spin_count_with(**variables: str) -> str:
    """What the GNU library says of itself when torch loads it."""
    own = os.environ  # noqa: TID251 - the process's own surroundings
    clean = {name: value for name, value in own.items() if name not in _VARIABLES}
    shown = subprocess.run(
        [sys.executable, "-c", _SHOW],
        env=clean | variables | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in shown.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not lines:
        pytest.skip("torch was built with another OpenMP library")
    return lines[-1].split("'")[1]


def test_idle_threads_spin_briefly():
    assert _spin_count_with() == "10000"


def test_what_the_user_says_goes_first():
    assert _spin_count_with(GOMP_SPINCOUNT="77") == "77"
    assert int(_spin_count_with(OMP_WAIT_POLICY="active")) > 10_000
