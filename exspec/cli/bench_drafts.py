"""`exspec bench drafts`: drafts for one target, on the same prompts.

Options, clusters and tables; what is measured is in `exspec.bench.drafts` and
`exspec.bench.draft_steps`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.bench import (
    Dataset,
    JsonTo,
    Model,
    local_cluster,
    report_console,
    show_table,
    steps,
    write_json,
)
from exspec.cli.bench_prompts import prompts_by_task
from exspec.cli.bench_runs import names_the_dead
from exspec.cli.common import EXIT_FAILED, tells_errors
from exspec.cli.options import NumThreads
from exspec.core.errors import ExspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exspec.audit.datasets import DatasetPrompt
    from exspec.bench.drafts import DraftChoice, DraftsRuns, TokenIds
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line, the same for all drafts."""

    drafts: tuple[str, ...]
    dataset: str
    num_prompts: int | None
    max_tokens: int
    max_prompt_tokens: int
    num_speculative_tokens: int
    batch_size: int
    ignore_eos: bool
    compares: bool
    model: str
    num_threads: int | None


@tells_errors
def drafts(
    draft: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="A draft model; MODEL+lookup looks tokens up beside it, MODEL+vocab=N drafts "
            "among N tokens (or a file's); ngram looks up alone. May be given again.",
        ),
    ],
    dataset: Dataset = "builtin",
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts, spread over categories. Default: all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of a request.")] = 64,
    num_speculative_tokens: Annotated[
        int, typer.Option(min=1, max=64, help="Draft tokens per row and round.")
    ] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts lose their end.")
    ] = 1024,
    ignore_eos: Annotated[
        bool, typer.Option(help="Go on behind the end of an answer, to --max-tokens.")
    ] = False,
    plain: Annotated[
        bool, typer.Option(help="Also decode without drafts, and compare the outputs.")
    ] = True,
    model: Model = "smollm2-135m-instruct",
    num_threads: NumThreads = None,
    json_to: JsonTo = None,
) -> None:
    """How long drafts are accepted, by category and position, and what a draft token costs.

    Greedy decoding on a cluster per draft. Acceptance length: tokens committed per round, sums over
    requests; the first token of a request, which its prefill decides, and that pass do not count.
    The last round of a request is cut at --max-tokens or behind a stop token, so the figure is a
    little low: by a token or less per request. Costs are those of one request alone, 32 tokens
    after two of the prompts, the fastest of three runs. Spec-Bench's eight MT-Bench categories are
    told as one. Exit code 1 if a draft failed or an output is not that of plain decoding.
    """
    from exspec.audit.datasets import load_prompts
    from exspec.bench.drafts import DraftsPlan, DraftsRuns, draft_of

    choices = [draft_of(name) for name in dict.fromkeys(draft)]
    wish = Wish(
        tuple(draft), dataset, num_prompts, max_tokens, max_prompt_tokens, num_speculative_tokens,
        batch_size, ignore_eos, plain, model, num_threads,
    )  # fmt: skip
    runs = DraftsRuns(DraftsPlan(num_speculative_tokens, max_tokens, batch_size, ignore_eos))
    load_prompts(dataset, num_prompts)  # refuses more than there are
    texts = prompts_by_task(dataset, num_prompts)
    try:
        _measure(wish, choices, texts, runs, None if json_to == "-" else json_to)
    except KeyboardInterrupt:
        _tell(wish, runs, len(texts), json_to)
        raise
    _tell(wish, runs, len(texts), json_to)
    differs = any(runs.tally(one).num_identical not in (None, len(texts)) for one in runs.samples)
    if runs.failures or differs:
        raise typer.Exit(EXIT_FAILED)


def _measure(
    wish: Wish,
    choices: Sequence[DraftChoice],
    texts: Sequence[DatasetPrompt],
    runs: DraftsRuns,
    json_to: str | None,
) -> None:
    """A draft that fails is noted, and the others go on; what is known is kept after each."""
    from exspec.bench.report_drafts import drafts_dict

    prompts: list[TokenIds] = []
    for choice in choices:
        try:
            with local_cluster(_cluster(wish, choice)) as cluster, names_the_dead(cluster):
                prompts = prompts or _tokenize(cluster, texts, wish.max_prompt_tokens)
                if wish.compares and runs.plain is None:
                    _measure_plain(cluster, prompts, runs)
                _measure_draft(cluster, choice, texts, prompts, runs)
        except ExspecError as error:
            runs.failures[choice.name] = f"{type(error).__name__}: {error}"
        write_json(json_to, drafts_dict(asdict(wish), runs))


def _cluster(wish: Wish, choice: DraftChoice) -> ClusterPlan:
    from exspec.bench.draft_steps import LONG_TOKENS
    from exspec.cli.cluster_plan import ClusterPlan

    return ClusterPlan(
        model=wish.model,
        draft_model=choice.model,
        draft_vocab=choice.draft_vocab,
        lookup=choice.lookup,
        batch_size=wish.batch_size,
        max_model_len=wish.max_prompt_tokens + max(wish.max_tokens, LONG_TOKENS),
        num_speculative_tokens=wish.num_speculative_tokens,
        num_threads=wish.num_threads,
    )


def _tokenize(
    cluster: LocalCluster, texts: Sequence[DatasetPrompt], max_length: int
) -> list[TokenIds]:
    from exspec.bench.load import tokenize_chats
    from exspec.client import Client

    with Client(cluster.address) as client:
        return list(tokenize_chats(client, [one.text for one in texts], max_length).prompts)


def _measure_plain(cluster: LocalCluster, prompts: Sequence[TokenIds], runs: DraftsRuns) -> None:
    with steps() as progress:
        task = progress.add_task("plain: requests", total=len(prompts))
        runs.measure_plain(cluster.address, prompts, lambda: progress.advance(task))


def _measure_draft(
    cluster: LocalCluster,
    choice: DraftChoice,
    texts: Sequence[DatasetPrompt],
    prompts: Sequence[TokenIds],
    runs: DraftsRuns,
) -> None:
    from exspec.bench.draft_steps import measure_steps

    k = runs.plan.num_speculative_tokens
    with steps() as progress:
        task = progress.add_task(f"{choice.name}: costs")
        cost = measure_steps(cluster.address, prompts, k, lambda: progress.advance(task))
        progress.reset(task, total=len(prompts), description=f"{choice.name}: requests")
        pairs = [(one.category, tokens) for one, tokens in zip(texts, prompts, strict=True)]
        runs.measure(cluster.address, choice, pairs, cost, lambda: progress.advance(task))


def _tell(wish: Wish, runs: DraftsRuns, num_prompts: int, json_to: str | None) -> None:
    from exspec.bench import report_drafts as report

    console = report_console(json_to)
    title = (
        f"{num_prompts} requests of at most {wish.max_tokens} tokens, prompts of {wish.dataset}, "
        f"K = {wish.num_speculative_tokens}, B = {wish.batch_size}"
    )
    show_table(console, title, report.CATEGORY_COLUMNS, report.category_rows(runs))
    show_table(
        console, "all prompts; costs at B = 1", report.DRAFT_COLUMNS, report.draft_rows(runs)
    )
    for line, is_good in report.drafts_lines(runs):
        console.print(line, style=None if is_good else "red", markup=False)
    write_json(json_to, report.drafts_dict(asdict(wish), runs))
