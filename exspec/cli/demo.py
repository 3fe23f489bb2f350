"""`exspec demo`: the default pair on this machine, with and without speculation, checked.

Shows and times; what is compared is computed in `demo_run`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.common import (
    EXIT_FAILED,
    AsJson,
    exits_on_sigterm,
    open_console,
    print_json,
    tells_errors,
)
from exspec.cli.options import ClusterSpeculation, DraftModel, KvLayout

if TYPE_CHECKING:
    from exspec.cli.cluster import Progress
    from exspec.cli.demo_run import Comparison, Row


@tells_errors
def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per prompt.")] = 48,
    draft_model: DraftModel = "smollm2-draft",
    num_speculative_tokens: ClusterSpeculation = None,
    kv_layout: KvLayout = "slots",
    as_json: AsJson = False,
) -> None:
    """Start a cluster, answer six prompts, alone and at once, and compare with plain decoding.

    Exit code 1 if any answer differs from plain decoding by one token.
    """
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan
    from exspec.cli.demo_run import PROMPTS, compare

    plan = ClusterPlan(
        draft_model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        max_num_seqs=len(PROMPTS),
        kv_layout=kv_layout,
    )
    say = _ToStderr() if as_json else _ToStdout()
    cluster = LocalCluster(plan, on_progress=say.progress)
    with exits_on_sigterm():
        comparison = compare(cluster, max_tokens, say)
    if as_json:
        print_json(comparison.as_dict())
    else:
        _show(comparison)
    if not comparison.is_identical:
        raise typer.Exit(EXIT_FAILED)


class _ToStdout:
    """Tells what goes on, and streams the first answer."""

    out = sys.stdout

    def progress(self, progress: Progress) -> None:
        self.step(f"{progress.name:<12} {progress.phase:<10} {progress.detail}".rstrip())

    def step(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()

    def piece(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()


class _ToStderr(_ToStdout):
    """Leaves stdout to the JSON."""

    out = sys.stderr


def _show(comparison: Comparison) -> None:
    from rich.table import Table

    console = open_console()
    table = Table(title="Speculative and plain decoding, the same six prompts on the same cluster")
    table.add_column("prompt", overflow="ellipsis", no_wrap=True, max_width=28)
    for name in (
        "prompt\ntokens",
        "tokens",
        "rounds",
        "acceptance\nlength",
        "tokens/s with\nspeculation",
        "tokens/s\nwithout",
        "identical to\nplain decoding",
    ):
        table.add_column(name, justify="right")
    for row in comparison.rows:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(comparison.total), style="bold")
    table.add_row(*_cells(comparison.total_at_once), style="bold")
    console.print(table)
    for row in comparison.rows:
        if row.difference:
            console.print(f"{row.name}: {row.difference}", style="red", markup=False)


def _cells(row: Row) -> list[str]:
    from rich.markup import escape

    return [
        escape(row.name),
        str(row.num_prompt_tokens),
        str(row.num_tokens),
        str(row.num_rounds),
        f"{row.acceptance_length:.2f}",
        f"{row.speculative_tokens_per_second:.1f}",
        f"{row.plain_tokens_per_second:.1f}",
        "[green]yes[/]" if row.is_identical else "[red]NO[/]",
    ]
