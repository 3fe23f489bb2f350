"""`exspec bench`: where a round's time goes, how memory behaves.

Options, progress and tables; what is measured is in `exspec.bench`. The helpers at the end are
shared with `exspec audit`.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from exspec.cli.common import open_console, plain, tells_errors
from exspec.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from exspec.bench.rounds import RoundsPlan, RoundsSample
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan

LOG_WIDTH = 140
EXIT_TERMINATED = 143

Dataset = Annotated[
    str,
    typer.Option(help="builtin, spec_bench:PATH (JSON lines) or lines:PATH (one prompt a line)."),
]
JsonTo = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help='Write the figures as JSON to a file; "-": to stdout.'
    ),
]
Model = Annotated[str, typer.Option(help="Target model: name, directory or GGUF file.")]
DraftModel = Annotated[
    str, typer.Option(help='Draft model; "ngram" for prompt look-up, "none" for no draft.')
]

app = typer.Typer(help="Measure a cluster on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure a cluster on this machine."""


@app.command()
@tells_errors
def rounds(
    layouts: Annotated[str, typer.Option(help="KV layouts, with commas.")] = "slots,padded",
    batch_sizes: Annotated[
        str, typer.Option(help="Requests in flight, with commas.")
    ] = "1,4,8,16,32",
    requests_per_row: Annotated[
        int, typer.Option(min=1, help="At B requests in flight, this many times B are sent.")
    ] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every request.")] = 32,
    num_speculative_tokens: Annotated[
        int, typer.Option(min=0, max=64, help="Draft tokens per row and round.")
    ] = 5,
    dataset: Dataset = "builtin",
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts taken, and repeated. Default: all.")
    ] = None,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are cut to this.")
    ] = 256,
    model: Model = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    json_to: JsonTo = None,
) -> None:
    """Share of a round in draft, verify, alignment, workers' overhead, gRPC and scheduling.

    One cluster of its own per layout. Exit code 0 even if an expectation is missed: it is said.
    """
    from exspec.audit.datasets import load_prompts
    from exspec.bench.arguments import layouts_of, numbers_of
    from exspec.bench.rounds import RoundsPlan
    from exspec.cli.cluster_plan import ClusterPlan

    sizes = numbers_of("batch_sizes", batch_sizes)
    plan = RoundsPlan(sizes, requests_per_row, max_tokens, num_speculative_tokens)
    texts = [prompt.text for prompt in load_prompts(dataset, num_prompts)]
    samples: list[RoundsSample] = []
    for layout in layouts_of(layouts):
        cluster = ClusterPlan(
            model=model,
            draft_model=draft_model,
            kv_layout=layout,
            max_num_seqs=max(sizes),
            max_model_len=max_prompt_tokens + max_tokens,
            num_speculative_tokens=num_speculative_tokens,
        )
        samples += _measure_rounds(cluster, plan, texts, max_prompt_tokens)
    title = f"K = {num_speculative_tokens}, {max_tokens} tokens per request, prompts of {dataset}"
    _show_rounds(title, samples, json_to)


def _measure_rounds(
    cluster_plan: ClusterPlan, plan: RoundsPlan, texts: Sequence[str], max_prompt_tokens: int
) -> list[RoundsSample]:
    from exspec.bench.rounds import measure_rounds

    layout = cluster_plan.kv_layout
    with local_cluster(cluster_plan) as cluster, steps() as progress:
        prompts = _tokenize(cluster.address, texts, max_prompt_tokens)
        task = progress.add_task(f"{layout}: requests", total=plan.num_requests)
        return measure_rounds(
            cluster.address, layout, prompts, plan, lambda: progress.advance(task)
        )


def _show_rounds(title: str, samples: Sequence[RoundsSample], json_to: str | None) -> None:
    from exspec.bench import report
    from exspec.bench.rounds import expectations

    expected = expectations(samples)
    console = report_console(json_to)
    rows = [report.rounds_row(sample) for sample in samples]
    show_table(console, title, report.ROUNDS_COLUMNS, rows)
    for expectation in expected:
        style = None if expectation.is_met else "red"
        console.print(report.expectation_line(expectation), style=style, markup=False)
    write_json(json_to, report.rounds_dict(samples, expected))


@app.command()
@tells_errors
def memory(
    num_requests: Annotated[
        str, typer.Option(help="Requests served before each look, with commas.")
    ] = "50,500",
    batch_size: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every request.")] = 8,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are cut to this.")
    ] = 32,
    kv_layout: Annotated[str, typer.Option(help="slots or padded.")] = "slots",
    dataset: Dataset = "builtin",
    model: Model = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    json_to: JsonTo = None,
) -> None:
    """Resident memory of every process of a cluster after many short requests, and many more."""
    from exspec.audit.datasets import load_prompts
    from exspec.bench import report
    from exspec.bench.arguments import layouts_of, numbers_of
    from exspec.bench.load import LoadPlan
    from exspec.bench.memory import MemoryPlan, measure_memory
    from exspec.cli.cluster_plan import ClusterPlan

    counts = numbers_of("num_requests", num_requests)
    plan = MemoryPlan(counts, LoadPlan(batch_size, {"max_tokens": max_tokens}))
    texts = [prompt.text for prompt in load_prompts(dataset)]
    layout = layouts_of(kv_layout)[0]
    cluster_plan = ClusterPlan(
        model=model,
        draft_model=draft_model,
        kv_layout=layout,
        max_num_seqs=batch_size,
        num_speculative_tokens=5,  # a cluster that decides might leave the draft without work
    )
    with local_cluster(cluster_plan) as cluster, steps() as progress:
        prompts = _tokenize(cluster.address, texts, max_prompt_tokens)
        task = progress.add_task("requests", total=counts[-1])
        processes = measure_memory(
            cluster.address, cluster.pids, prompts, plan, lambda: progress.advance(task)
        )
    columns = ("process", *(f"MiB after\n{count}" for count in counts), "growth", "steady?")
    title = f"resident memory, {layout}, {batch_size} in flight, {max_tokens} tokens per request"
    rows = [report.memory_row(process) for process in processes]
    show_table(report_console(json_to), title, columns, rows)
    write_json(json_to, report.memory_dict(counts, processes))


def _tokenize(address: str, texts: Sequence[str], max_length: int) -> tuple[tuple[int, ...], ...]:
    from exspec.bench.load import tokenize_chats
    from exspec.client import Client

    with Client(address) as client:
        return tokenize_chats(client, texts, max_length).prompts


@contextlib.contextmanager
def local_cluster(plan: ClusterPlan) -> Iterator[LocalCluster]:
    """A cluster of our own that is stopped at the end, also when SIGTERM comes."""
    from exspec.cli.cluster import LocalCluster

    def leave(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with steps() as progress:
            task = progress.add_task(f"starting a cluster, layout {plan.kv_layout}", total=None)
            cluster = LocalCluster(plan).__enter__()
            progress.update(task, total=1, completed=1)
        with contextlib.ExitStack() as stack:
            stack.push(cluster)
            yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def steps() -> Iterator[Progress]:
    """Progress on stderr, so that stdout holds results alone."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


def report_console(json_to: str | None) -> Console:
    """Where tables go: stdout, or stderr when the JSON goes there."""
    if json_to != "-":
        return open_console()
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    return console


def show_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Text on the left, figures on the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def write_json(json_to: str | None, value: object) -> None:
    """To a file, to stdout, or nowhere."""
    if json_to is None:
        return
    text = json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n"
    if json_to == "-":
        sys.stdout.write(text)
        return
    try:
        Path(json_to).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"{json_to} cannot be written: {error.strerror}", field="json"
        ) from error
