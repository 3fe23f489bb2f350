"""Entry point of `exspec`: the list of commands. Each command lives in a file of its own."""

from __future__ import annotations

import typer

from exspec.cli.audit import app as audit_app
from exspec.cli.bench import app as bench_app
from exspec.cli.bench_draft_cost import draft_cost
from exspec.cli.bench_drafts import drafts
from exspec.cli.bench_policies import grouping, policies
from exspec.cli.bench_sampling import choosing_cost, sampling
from exspec.cli.bench_simulate import simulate
from exspec.cli.bench_targets import targets
from exspec.cli.certs import certs
from exspec.cli.demo import demo
from exspec.cli.distill import distill
from exspec.cli.doctor import doctor
from exspec.cli.drain import drain
from exspec.cli.generate import generate
from exspec.cli.health import health
from exspec.cli.keys import app as keys_app
from exspec.cli.serve import serve_app
from exspec.cli.status import status
from exspec.cli.up import up
from exspec.cli.version import version
from exspec.cli.watch import watch

app = typer.Typer(
    name="exspec",
    help="Exact speculative decoding as a service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.add_typer(serve_app, name="serve")
app.command()(generate)
app.command()(status)
app.command()(watch)
app.command()(drain)
app.command()(health)
app.command()(doctor)
app.command()(certs)
app.add_typer(keys_app, name="keys")
app.command()(demo)
app.command()(distill)
app.add_typer(audit_app, name="audit")
bench_app.command()(simulate)
bench_app.command()(policies)
bench_app.command()(grouping)
bench_app.command()(targets)
bench_app.command()(drafts)
bench_app.command()(sampling)
bench_app.command("draft-cost")(draft_cost)
bench_app.command("choosing-cost")(choosing_cost)
app.add_typer(bench_app, name="bench")
app.command()(version)


if __name__ == "__main__":
    app()
