"""`exspec bench` from the command line: what is refused, and that looking costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from exspec.cli.main import bench_app as app


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rounds", "--layouts", "paged"], "unknown layout 'paged'"),
        (["rounds", "--batch-sizes", "1,x"], "--batch-sizes"),
        (["rounds", "--dataset", "lines:/does/not/exist"], "/does/not/exist"),
        (["draft-cost", "--contexts", "4"], "contexts"),
        (["draft-cost", "--batch-sizes", "0"], "--batch-sizes"),
        (["draft-cost", "--draft-weights", "int7"], "unknown draft weights 'int7'"),
        (["memory", "--num-requests", "500,50"], "growing counts"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments, words):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_help_loads_neither_torch_nor_grpc():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from exspec.cli import audit, bench\n"
        "assert CliRunner().invoke(bench.app, ['rounds', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(audit.app, ['equality', '--help']).exit_code == 0\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'grpc')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
