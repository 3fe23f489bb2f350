"""`exspec version`."""

from __future__ import annotations

from importlib import metadata

import typer


def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("exspec"))
