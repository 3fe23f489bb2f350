"""`exspec audit`: is what a cluster serves what plain decoding gives?

Options and tables. Asking and judging are `exspec.cli.audit_runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from exspec.cli.audit_runs import DEFAULT_MODEL, Wish, ask, ask_local, judge
from exspec.cli.bench import Dataset, DraftModel, JsonTo, report_console, show_table, write_json
from exspec.cli.common import EXIT_FAILED, tells_errors
from exspec.cli.connect import Connect, connects
from exspec.cli.sampling_options import Sampling, samples

if TYPE_CHECKING:
    from exspec.audit.report import EqualityReport

app = typer.Typer(help="The correctness laboratory.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """The correctness laboratory."""


@app.command()
@tells_errors
@connects
@samples
def equality(
    connect: Connect,
    sampling: Sampling,
    dataset: Dataset = "builtin",
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts, spread over categories. Default: all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per prompt.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    chat: Annotated[
        bool, typer.Option(help="Prompts as messages of a chat, or as bare text.")
    ] = True,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts lose their end.")
    ] = 1024,
    model: Annotated[
        str, typer.Option(help="What to load for the reference. Default: the name served.")
    ] = "",
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"],
        typer.Option(help="Of the reference; float64 uses no code of ours at all."),
    ] = "float32",
    num_speculative_tokens: Annotated[
        int | None, typer.Option(min=0, max=64, help="Draft tokens. Default: the cluster's.")
    ] = None,
    layouts: Annotated[
        str, typer.Option(help="Start a local cluster for each of these KV layouts instead.")
    ] = "",
    draft_model: DraftModel = "smollm2-draft",
    reference_cache: Annotated[
        Path | None, typer.Option(help="File to keep references in, for the next audit.")
    ] = None,
    json_to: JsonTo = None,
) -> None:
    """Compare what a cluster serves with plain batch-1 decoding, token for token.

    Greedy unless options say else: the advice of the model's makers is not followed, and the seed
    is 0 unless given. Exit code 0 if all is the same or differs only where rounding of logits can
    make the other token the choice, else 1.
    """
    from exspec.audit.sampled import AuditedSampling

    wish = Wish(
        dataset, num_prompts, max_tokens, batch_size, chat, max_prompt_tokens,
        num_speculative_tokens, AuditedSampling.of(sampling),
    )  # fmt: skip
    if layouts:
        from exspec.bench.arguments import layouts_of

        local = model or DEFAULT_MODEL
        served = [ask_local(wish, layout, local, draft_model) for layout in layouts_of(layouts)]
    else:
        served = [ask(wish, connect)]
    reports = judge(served, model, dtype, reference_cache)
    _show(reports, json_to)
    if not all(report.verdict.passes for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _show(reports: Sequence[EqualityReport], json_to: str | None) -> None:
    from exspec.audit import report

    console = report_console(json_to)
    console.print(report.heading(reports[0]), markup=False)
    rows = [report.summary_row(one) for one in reports]
    show_table(console, "equality with plain decoding", report.SUMMARY_COLUMNS, rows)
    differences = [row for one in reports for row in report.difference_rows(one)]
    if differences:
        show_table(console, "every difference", report.DIFFERENCE_COLUMNS, differences)
        console.print(report.BOUND_NOTE, markup=False)
    write_json(json_to, report.as_document(reports))
