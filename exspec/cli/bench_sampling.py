"""`exspec bench sampling` and `exspec bench choosing-cost`: what sampling does to speculation.

Options, clusters and tables; what is measured is in `exspec.bench.sampling` and
`exspec.bench.choosing_cost`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.bench import (
    Dataset,
    DraftModel,
    JsonTo,
    Model,
    local_cluster,
    report_console,
    show_table,
    steps,
    write_json,
)
from exspec.cli.common import EXIT_FAILED, tells_errors
from exspec.cli.options import DraftVocab, LookupMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exspec.bench.sampling import SamplingRuns
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan


@tells_errors
def sampling(
    temperatures: Annotated[
        str, typer.Option(help="Temperatures, with commas; 0 is greedy.")
    ] = "0,0.7,1",
    top_ps: Annotated[str, typer.Option(help="Values of top-p, with commas.")] = "1,0.95",
    num_speculative_tokens: Annotated[
        int, typer.Option(min=1, max=64, help="Draft tokens per row and round.")
    ] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests per setting.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every request.")] = 64,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are cut to this.")
    ] = 256,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first request.")] = 0,
    dataset: Dataset = "builtin",
    model: Model = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    lookup: LookupMode = None,
    draft_vocab: DraftVocab = None,
    json_to: JsonTo = None,
) -> None:
    """Accepted drafts by temperature and top-p: drafts with the target's noise against argmax.

    One cluster for each kind of draft. Exit code 1 if a request did not come out as plain decoding
    has it.
    """
    from exspec.audit.datasets import load_prompts, spread
    from exspec.bench.arguments import decimals_of
    from exspec.bench.sampling import SamplingPlan, SamplingRuns, settings_of
    from exspec.cli.cluster_plan import ClusterPlan

    settings = settings_of(decimals_of("temperatures", temperatures), decimals_of("top_ps", top_ps))
    plan = SamplingPlan(settings, num_speculative_tokens, max_tokens, batch_size, first_seed)
    runs = SamplingRuns(plan)
    cluster = ClusterPlan(
        model=model,
        draft_model=draft_model,
        lookup=lookup,
        draft_vocab=draft_vocab,
        batch_size=batch_size,
        max_model_len=max_prompt_tokens + max_tokens,
        num_speculative_tokens=num_speculative_tokens,
    )
    texts = [prompt.text for prompt in spread(load_prompts(dataset), num_prompts)]
    _measure(cluster, runs, texts, max_prompt_tokens)
    _tell(f"{len(texts)} requests of {max_tokens} tokens per setting, prompts of {dataset}, "
          f"K = {num_speculative_tokens}", runs, json_to)  # fmt: skip
    if not runs.is_exact:
        raise typer.Exit(EXIT_FAILED)


def _measure(
    plan: ClusterPlan, runs: SamplingRuns, texts: Sequence[str], max_prompt_tokens: int
) -> None:
    """Plain decoding on the first cluster, which need not be started for it alone."""
    from exspec.bench.load import tokenize_chats
    from exspec.bench.sampling import METHODS
    from exspec.client import Client

    prompts: tuple[tuple[int, ...], ...] = ()
    for method in METHODS:
        with local_cluster(replace(plan, draft_sample_method=method)) as cluster:
            if not prompts:
                with Client(cluster.address) as client:
                    prompts = tokenize_chats(client, texts, max_prompt_tokens).prompts
                _with_progress("plain", cluster, runs, prompts)
            _with_progress(method, cluster, runs, prompts)


def _with_progress(
    what: str, cluster: LocalCluster, runs: SamplingRuns, prompts: Sequence[tuple[int, ...]]
) -> None:
    from exspec.bench.sampling import METHODS

    with steps() as progress:
        total = len(prompts) * len(runs.plan.settings)
        task = progress.add_task(f"drafts: {what}, requests", total=total)
        if what in METHODS:
            runs.measure(cluster.address, prompts, what, lambda: progress.advance(task))
        else:
            runs.measure_plain(cluster.address, prompts, lambda: progress.advance(task))


def _tell(title: str, runs: SamplingRuns, json_to: str | None) -> None:
    from exspec.bench import report_sampling as report

    console = report_console(json_to)
    show_table(console, title, report.SAMPLING_COLUMNS, report.sampling_rows(runs))
    for line, is_good in report.sampling_lines(runs):
        console.print(line, style=None if is_good else "red", markup=False)
    write_json(json_to, report.sampling_dict(runs))


@tells_errors
def choosing_cost(
    model: Model = "smollm2-135m-instruct",
    batch_sizes: Annotated[str, typer.Option(help="Rows of a pass, with commas.")] = "8,1",
    num_drafts: Annotated[
        str, typer.Option(help="Draft tokens of every row, with commas; 0: none.")
    ] = "0,4",
    context: Annotated[int, typer.Option(min=2, help="Tokens before a pass.")] = 256,
    num_passes: Annotated[int, typer.Option(min=1, help="Passes of each kind.")] = 20,
    dataset: Dataset = "builtin",
    json_to: JsonTo = None,
) -> None:
    """What sampling, penalties and logprobs add to a verify pass, and where that time goes."""
    from exspec.audit.datasets import load_prompts
    from exspec.bench import report_choosing as report
    from exspec.bench.arguments import counts_of, numbers_of
    from exspec.bench.choosing_cost import ChoosingCostPlan, kinds_of_rules, measure_choosing_cost

    sizes, counts = numbers_of("batch_sizes", batch_sizes), counts_of("num_drafts", num_drafts)
    plan = ChoosingCostPlan(model, sizes, counts, context, num_passes)
    text = "\n\n".join(prompt.text for prompt in reversed(load_prompts(dataset)))
    with steps() as progress:
        total = len(sizes) * len(counts) * len(kinds_of_rules(0))
        task = progress.add_task("kinds and shapes", total=total)
        costs = measure_choosing_cost(plan, text, lambda: progress.advance(task))
    console = report_console(json_to)
    title = f"choosing with {model}, context {context}, {num_passes} passes in turn with greedy"
    show_table(console, title, report.CHOOSING_COLUMNS, report.choosing_rows(costs))
    for cost in report.profiled(costs):
        show_table(console, report.step_title(cost), report.STEP_COLUMNS, report.step_rows(cost))
    for line, is_good in report.choosing_lines(costs):
        console.print(line, style=None if is_good else "red", markup=False)
    write_json(json_to, report.choosing_dict(plan, costs))
