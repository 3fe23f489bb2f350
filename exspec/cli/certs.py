"""`exspec certs`: a test authority and a certificate for every role, in a folder."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.common import AsJson, fail, open_console, print_json, tells_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exspec.certs.folder import Made

CLOCK_SKEW = timedelta(minutes=5)
"""Machines whose clocks are this much behind take the certificates at once, too."""

RENEWAL = timedelta(days=30)
"""With --keep: certificates that expire sooner are made anew."""


@tells_errors
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or IP address at which clients reach the coordinator; may be given again. "
            "coordinator, localhost, 127.0.0.1 and ::1 are always in."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until they expire.")] = 365,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite what is there: a new authority.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Change nothing while all that is there lasts another 30 days."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make certificates for a cluster: an authority, the coordinator, workers, operators.

    For tests and closed networks. Keep ca-key.pem away from the cluster: who has it can be anyone.
    """
    try:
        from exspec.certs.authority import Validity
        from exspec.certs.folder import make_certificates, valid_until
    except ModuleNotFoundError as error:
        fail(f"{error.name} is needed: pip install 'exspec[certs]'")
    from exspec.runtime.clock import now

    if keep and (valid_until(folder) or now()) - now() > RENEWAL:
        sys.stderr.write(f"kept the certificates in {folder}\n")
        return
    validity = Validity(now() - CLOCK_SKEW, now() + timedelta(days=days))
    try:
        made = make_certificates(folder, host or (), validity, may_overwrite=force or keep)
    except OSError as error:
        fail(f"cannot write to {folder}: {error}")
    if as_json:
        print_json([_as_dict(one) for one in made])
    else:
        _show(folder, made)


def _as_dict(made: Made) -> dict[str, object]:
    return {
        "certfile": str(made.certfile),
        "keyfile": str(made.keyfile),
        "names": made.names,
        "not_after": made.not_after.isoformat(timespec="seconds"),
    }


def _show(folder: Path, made: Sequence[Made]) -> None:
    from rich.table import Table

    table = Table("certificate", "key", "good for", "until", box=None)
    for one in made:
        names = ", ".join(one.names) or "signing"
        until = one.not_after.strftime("%Y-%m-%d")
        table.add_row(one.certfile.name, one.keyfile.name, names, until)
    console = open_console()
    console.print(f"in {folder}:", soft_wrap=True, markup=False)
    console.print(table)
