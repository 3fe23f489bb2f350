"""`exspec bench policies` and `exspec bench grouping`: real runs under different policies.

Options alone; what is measured and compared is in `exspec.bench.runs`, `policies` and `grouping`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from exspec.cli.bench import Dataset, DraftModel, JsonTo, Model
from exspec.cli.bench_prompts import prompts_by_task
from exspec.cli.bench_runs import (
    LEAST_SECONDS,
    SECONDS_A_PROMPT,
    Comparison,
    Telling,
    Wish,
    check_plot_path,
    compare,
    tokenize,
)
from exspec.cli.common import tells_errors
from exspec.cli.options import DraftVocab, KvLayout, LookupMode, NumThreads

BatchSizes = Annotated[str, typer.Option(help="Most rows verified at once, with commas.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of every request.")]
MaxPromptTokens = Annotated[int, typer.Option(min=1, help="Longer prompts are cut to this.")]
InFlight = Annotated[
    int | None,
    typer.Option(min=1, help="Requests open at any time. Default: all are sent at once."),
]
Repeats = Annotated[
    int, typer.Option(min=1, help="Runs of every configuration, in turns; medians are told.")
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Seconds after which a request has failed, and with it its run. "
        f"Default: {LEAST_SECONDS:g}, or {SECONDS_A_PROMPT:g} for every prompt of the run if that "
        "is more: requests may wait for one another.",
    ),
]
PlotTo = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Draw figures to a .png or .svg file.")
]


@tells_errors
def policies(
    policies: Annotated[
        str, typer.Option(help="Policies, with commas; plain decoding is always there.")
    ] = "eqspec,exspec-paper,exspec",
    batch_sizes: BatchSizes = "1,2,4,8,16",
    speculation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[POLICY=]K,K,…",
            help="Draft tokens per row and round, for all policies or for one; may be given again. "
            "Default: auto,5.",
        ),
    ] = None,
    window_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sequences in play with exspec (default: the coordinator's) and with exspec-paper "
            "(default: 4 B, at least 32).",
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Requests of every run; prompts repeat when they run out.")
    ] = 60,
    max_tokens: MaxTokens = 64,
    ignore_eos: Annotated[
        bool,
        typer.Option(help="Go on behind the end of an answer, so that all requests are as long."),
    ] = True,
    in_flight: InFlight = None,
    repeats: Repeats = 1,
    dataset: Dataset = "builtin",
    max_prompt_tokens: MaxPromptTokens = 256,
    kv_layout: KvLayout = "slots",
    model: Model = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    lookup: LookupMode = None,
    draft_vocab: DraftVocab = None,
    num_threads: NumThreads = None,
    request_timeout: RequestTimeout = None,
    json_to: JsonTo = None,
    plot_to: PlotTo = None,
) -> None:
    """Speed, latency and tokens under every scheduling policy, against plain decoding.

    A cluster of its own for every policy, B and K. Exit code 1 if one of them failed; 0 even if an
    expectation is missed: it is said.
    """
    from exspec.bench import policies as bench
    from exspec.bench.arguments import numbers_of, policies_of, speculations_of
    from exspec.bench.load import repeated, tokenize_chats

    wish = Wish(
        dataset, num_prompts, max_tokens, max_prompt_tokens, in_flight, repeats, request_timeout,
        kv_layout, model, draft_model, num_threads, lookup, draft_vocab, ignore_eos,
    )  # fmt: skip
    names, sizes = policies_of(policies), numbers_of("batch_sizes", batch_sizes)
    configurations = bench.configurations_of(
        names, sizes, speculations_of(speculation or ["auto,5"], names)
    )
    check_plot_path(plot_to)
    texts = [prompt.text for prompt in prompts_by_task(dataset, num_prompts)]
    prompts = {"": repeated(tokenize(wish, texts, tokenize_chats), num_prompts)}
    compare(
        Comparison(
            wish,
            configurations,
            prompts,
            lambda one: bench.window_of(one.policy, one.batch_size, window_size),
        ),
        _policies_telling(wish, json_to, plot_to),
    )


@tells_errors
def grouping(
    dataset: Dataset,
    policies: Annotated[str, typer.Option(help="Policies, with commas.")] = "exspec-paper,exspec",
    batch_sizes: BatchSizes = "2,4,8,16,32",
    num_speculative_tokens: Annotated[
        str, typer.Option(metavar="K", help="Draft tokens per row and round.")
    ] = "5",
    window_size: Annotated[int, typer.Option(min=1, help="Sequences in play.")] = 50,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts of either set.")] = 100,
    num_drawn: Annotated[
        int, typer.Option(min=1, help="Prompts of the data set that both sets are chosen from.")
    ] = 4000,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    max_tokens: MaxTokens = 50,
    in_flight: InFlight = None,
    repeats: Repeats = 1,
    max_prompt_tokens: MaxPromptTokens = 128,
    kv_layout: KvLayout = "padded",
    model: Model = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    lookup: LookupMode = None,
    draft_vocab: DraftVocab = None,
    num_threads: NumThreads = None,
    request_timeout: RequestTimeout = None,
    json_to: JsonTo = None,
    plot_to: PlotTo = None,
) -> None:
    """How often a batch needs no realignment: prompts of any length, and of one length in tokens.

    A cluster of its own for every policy, B and set of prompts. Exit code 1 if one of them failed.
    """
    from exspec.audit.datasets import load_prompts
    from exspec.bench import grouping as bench
    from exspec.bench.arguments import numbers_of, policies_of
    from exspec.bench.load import tokenize_texts

    wish = Wish(
        dataset, num_prompts, max_tokens, max_prompt_tokens, in_flight, repeats, request_timeout,
        kv_layout, model, draft_model, num_threads, lookup, draft_vocab,
    )  # fmt: skip
    sizes = numbers_of("batch_sizes", batch_sizes)
    configurations = bench.configurations_of(policies_of(policies), sizes, num_speculative_tokens)
    texts = bench.draw([prompt.text for prompt in load_prompts(dataset)], num_drawn, seed)
    check_plot_path(plot_to)
    prompts = bench.choose_prompts(tokenize(wish, texts, tokenize_texts), num_prompts, seed)
    compare(
        Comparison(
            wish, configurations, prompts.sets, lambda one: max(window_size, one.batch_size)
        ),
        _grouping_telling(wish, prompts.equal_length, json_to, plot_to),
    )


def _policies_telling(wish: Wish, json_to: str | None, plot_to: str | None) -> Telling:
    from exspec.bench import report_runs as report

    return Telling(
        f"{wish.num_prompts} requests of {wish.max_tokens} tokens, prompts of {wish.dataset}, "
        f"layout {wish.kv_layout}",
        report.POLICIES_COLUMNS,
        report.policies_rows,
        report.expectation_lines,
        lambda runs: report.policies_dict(asdict(wish), runs),
        report.policies_charts,
        json_to,
        plot_to,
    )


def _grouping_telling(
    wish: Wish, equal_length: int, json_to: str | None, plot_to: str | None
) -> Telling:
    from exspec.bench import report_runs as report

    return Telling(
        f"{wish.num_prompts} prompts of {wish.dataset}, random or of {equal_length} tokens each, "
        f"{wish.max_tokens} new tokens, layout {wish.kv_layout}",
        report.GROUPING_COLUMNS,
        report.grouping_rows,
        lambda _runs: (),
        lambda runs: report.runs_dict({**asdict(wish), "equal_length": equal_length}, runs),
        report.grouping_charts,
        json_to,
        plot_to,
    )
