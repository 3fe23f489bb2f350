"""`exspec keys`: the file of API keys of a coordinator. A key is told once; its hash is kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from exspec.cli.common import AsJson, fail, print_json, tells_errors
from exspec.core.api_keys import add_key, new_key, parse_keys, remove_key

app = typer.Typer(
    help="API keys of a coordinator's clients. A running coordinator takes changes by itself.",
    no_args_is_help=True,
)

KeyFile = Annotated[
    Path, typer.Option("--file", envvar="EXSPEC_API_KEYS_FILE", help="The coordinator's key file.")
]
Name = Annotated[
    str, typer.Argument(help="Whose key: letters, digits, dots, underscores, hyphens.")
]


@app.command("add")
@tells_errors
def add(name: Name, file: KeyFile) -> None:
    """Make a key and print it: this once, only its hash is kept. The file is made if need be."""
    key = new_key()
    _write(file, add_key(_read(file) if file.exists() else "", name, key))
    sys.stdout.write(f"{key}\n")


@app.command("list")
@tells_errors
def show(file: KeyFile, as_json: AsJson = False) -> None:
    """Print the names that have a key."""
    names = [key.name for key in parse_keys(_read(file))]
    if as_json:
        print_json(names)
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))


@app.command("remove")
@tells_errors
def remove(name: Name, file: KeyFile) -> None:
    """Take a key away; calls that are running go on."""
    _write(file, remove_key(_read(file), name))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {error}")


def _write(path: Path, text: str) -> None:
    from exspec.runtime.files import write_private

    try:
        write_private(path, text.encode())
    except OSError as error:
        fail(f"cannot write {path}: {error}")
