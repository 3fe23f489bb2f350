"""`exspec serve`: becomes one of the services. Their options are theirs; nothing is read here."""

from __future__ import annotations

import importlib.util
import os
import sys

import typer

from exspec.cli.common import fail

serve_app = typer.Typer(
    help="Run one service in this process: coordinator, target or draft.", no_args_is_help=True
)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


@serve_app.command("coordinator", context_settings=_PASS_THROUGH, add_help_option=False)
def coordinator(context: typer.Context) -> None:
    """Serve clients and schedule the workers. Loads no model; --help lists its options."""
    _become("coordinator", context.args)


@serve_app.command("target", context_settings=_PASS_THROUGH, add_help_option=False)
def target(context: typer.Context) -> None:
    """Serve the model that decides every token. --help lists its options."""
    _become("target_worker", context.args)


@serve_app.command("draft", context_settings=_PASS_THROUGH, add_help_option=False)
def draft(context: typer.Context) -> None:
    """Serve a draft model, or n-gram look-up. --help lists its options."""
    _become("draft_worker", context.args)


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process, so that signals and exit codes are the service's own."""
    if importlib.util.find_spec(module) is None:
        fail(f"the package {module} is not installed")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
