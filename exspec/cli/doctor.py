"""`exspec doctor`: is everything here that is needed? The checks are in `checks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from exspec.cli.common import (
    EXIT_FAILED,
    AsJson,
    open_console,
    print_json,
    tells_errors,
)
from exspec.cli.connect import Connect, connects

if TYPE_CHECKING:
    from exspec.cli.checks import Finding

_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@tells_errors
@connects
def doctor(connect: Connect, as_json: AsJson = False) -> None:
    """Check versions, weights, machine and port. Exit code 1 if something needed is missing."""
    from exspec.cli.checks import Verdict, run_checks

    findings = run_checks(connect)
    if as_json:
        print_json(findings)
    else:
        _show(findings)
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _show(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    console = open_console()
    for finding in findings:
        verdict = str(finding.verdict)
        line = Text(f"{verdict:<5}", style=_STYLES[verdict])
        line.append(f"{finding.name:<16} {finding.detail}", style="default")
        console.print(line, soft_wrap=True)
        if finding.advice:
            console.print(Text(f"     -> {finding.advice}"), soft_wrap=True)
