"""`exspec audit`: is what a cluster serves what plain decoding gives?

Options, progress and tables. Load comes from `exspec.bench.load`, the judgement from
`exspec.audit`; this is the one place where they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from exspec.cli.bench import (
    Dataset,
    DraftModel,
    JsonTo,
    local_cluster,
    report_console,
    show_table,
    steps,
    write_json,
)
from exspec.cli.common import EXIT_FAILED, tells_errors
from exspec.cli.connect import Connect, connects

if TYPE_CHECKING:
    from exspec.audit.equality import Answer, Question
    from exspec.audit.report import Conditions, EqualityReport
    from exspec.bench.load import LoadOutcome, TokenizedPrompts
    from exspec.client import Client, ServedModel
    from exspec.core.cluster import ClusterStatus, WorkerInfo

_STATUS_SECONDS = 10.0
_LOCAL_SPECULATION = 5
"""Draft tokens where nothing else was asked for: a cluster that decides might not speculate."""
_DEFAULT_MODEL = "smollm2-135m-instruct"

app = typer.Typer(help="The correctness laboratory.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """The correctness laboratory."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What was asked for on the command line."""

    dataset: str
    num_prompts: int | None
    max_tokens: int
    batch_size: int
    is_chat: bool
    max_prompt_tokens: int
    num_speculative_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Served:
    """What one cluster answered."""

    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    targets: tuple[WorkerInfo, ...]
    conditions: Conditions


@app.command()
@tells_errors
@connects
def equality(
    connect: Connect,
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
    """Compare what a cluster serves with plain batch-1 greedy decoding, token for token.

    Exit code 0 if all is the same or differs only where two logits tie within rounding, else 1.
    """
    wish = _Wish(
        dataset, num_prompts, max_tokens, batch_size, chat, max_prompt_tokens,
        num_speculative_tokens,
    )  # fmt: skip
    if layouts:
        from exspec.bench.arguments import layouts_of

        local = model or _DEFAULT_MODEL
        served = [_ask_local(wish, layout, local, draft_model) for layout in layouts_of(layouts)]
    else:
        served = [_ask(wish, connect)]
    reports = _judge(served, model, dtype, reference_cache)
    _show(reports, json_to)
    if not all(report.verdict.passes for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _ask_local(wish: _Wish, layout: str, model: str, draft_model: str) -> _Served:
    """Ask a cluster of our own."""
    from exspec.cli.cluster_plan import ClusterPlan

    own = wish.num_speculative_tokens
    plan = ClusterPlan(
        model=model,
        draft_model=draft_model,
        kv_layout=layout,
        max_num_seqs=wish.batch_size,
        num_speculative_tokens=_LOCAL_SPECULATION if own is None else own,
    )
    with local_cluster(plan) as cluster:
        return _ask(wish, Connect(cluster.address))


def _ask(wish: _Wish, connect: Connect) -> _Served:
    """Send all prompts to a running cluster."""
    from exspec.audit.datasets import load_prompts
    from exspec.audit.equality import Question
    from exspec.bench.load import LoadPlan, run_load
    from exspec.client import GenerateOptions

    prompts = load_prompts(wish.dataset, wish.num_prompts)
    options: GenerateOptions = {
        "max_tokens": wish.max_tokens,
        "num_speculative_tokens": wish.num_speculative_tokens,
    }
    with connect.client() as client, steps() as progress:
        before = client.wait_until_ready(_STATUS_SECONDS)
        (served_model,) = client.list_models()
        tokenized = _tokenize(client, wish, served_model, [prompt.text for prompt in prompts])
        task = progress.add_task("served", total=len(prompts))
        plan = LoadPlan(wish.batch_size, options, connect.access)
        outcome = run_load(connect.address, tokenized.prompts, plan, lambda: progress.advance(task))
        after = client.cluster_status()
    questions = tuple(
        Question(prompt.prompt_id, prompt.category, tokens)
        for prompt, tokens in zip(prompts, tokenized.prompts, strict=True)
    )
    conditions = _conditions(wish, served_model, tokenized, outcome, (before, after))
    return _Served(questions, _answers(outcome), _targets(after), conditions)


def _tokenize(
    client: Client, wish: _Wish, model: ServedModel, texts: Sequence[str]
) -> TokenizedPrompts:
    from exspec.bench.load import tokenize_chats, tokenize_texts

    room = min(wish.max_prompt_tokens, model.max_length - wish.max_tokens)
    return (tokenize_chats if wish.is_chat else tokenize_texts)(client, texts, room)


def _answers(outcome: LoadOutcome) -> tuple[Answer, ...]:
    from exspec.audit.equality import Answer
    from exspec.cli.common import describe
    from exspec.core.errors import ExspecError
    from exspec.core.generation import SpeculationStats

    return tuple(
        Answer((), SpeculationStats(), describe(result))
        if isinstance(result, ExspecError)
        else Answer(result.token_ids, result.speculation)
        for result in outcome.results
    )


def _targets(status: ClusterStatus) -> tuple[WorkerInfo, ...]:
    from exspec.core.ids import Role

    return _ready_workers(status, Role.TARGET)


def _ready_workers(status: ClusterStatus, role: object) -> tuple[WorkerInfo, ...]:
    from exspec.core.cluster import WorkerState

    return tuple(
        worker.worker
        for worker in status.workers
        if worker.worker.role is role and worker.state is WorkerState.READY
    )


def _conditions(
    wish: _Wish,
    model: ServedModel,
    tokenized: TokenizedPrompts,
    outcome: LoadOutcome,
    looks: tuple[ClusterStatus, ClusterStatus],
) -> Conditions:
    from exspec.audit.report import Conditions
    from exspec.bench.load import totals_between
    from exspec.core.errors import UnavailableError
    from exspec.core.ids import Role

    status = looks[1]
    targets = _targets(status)
    if not targets:
        raise UnavailableError("no target worker was left at the end")
    totals = totals_between(looks[0].totals, status.totals)
    own = wish.num_speculative_tokens
    drafts = {worker.model.name for worker in _ready_workers(status, Role.DRAFT)}
    return Conditions(
        dataset=wish.dataset,
        num_prompts=len(tokenized.prompts),
        num_cut_prompts=tokenized.num_cut,
        max_tokens=wish.max_tokens,
        num_in_flight=wish.batch_size,
        is_chat=wish.is_chat,
        stop_token_ids=model.stop_token_ids,
        model=model.name,
        served_dtype="+".join(sorted({target.model.dtype for target in targets})),
        reference_dtype="",
        draft_models=tuple(sorted(drafts)),
        kv_layouts=tuple(sorted({target.kv_layout for target in targets})),
        num_target_slots=sum(target.num_slots for target in targets),
        rows_per_round=totals.num_row_rounds / max(totals.num_rounds, 1),
        policy=status.policy,
        speculation=status.speculation if own is None else str(own),
        num_tokens=outcome.num_tokens,
        served_seconds=outcome.seconds,
    )


def _judge(
    served: Sequence[_Served], model: str, dtype: str, reference_cache: Path | None
) -> list[EqualityReport]:
    """Load the reference model once, decode every prompt once, judge every cluster."""
    from dataclasses import replace

    from exspec.audit.equality import judge_answers
    from exspec.audit.reference_cache import ReferenceCache
    from exspec.audit.reference_runs import ReferenceDecoder
    from exspec.audit.report import EqualityReport
    from exspec.engine.loading import ModelSettings

    cache = ReferenceCache(reference_cache)
    first = served[0].conditions
    settings = ModelSettings(model or first.model, dtype=dtype)
    with steps() as progress:
        task = progress.add_task("reference", total=len(served) * first.num_prompts)
        decoder = ReferenceDecoder(settings, served[0].targets[0].model.dtype, cache)
        reports: list[EqualityReport] = []
        for one in served:
            for target in one.targets:
                decoder.require_same_weights(target.model)
            stops = one.conditions.stop_token_ids
            prompts = [question.prompt_tokens for question in one.questions]
            references = decoder.decode_all(
                prompts, first.max_tokens, stops, lambda: progress.advance(task)
            )
            verdict = judge_answers(one.questions, references, one.answers, stops, decoder)
            conditions = replace(one.conditions, reference_dtype=decoder.facts.dtype)
            reports.append(EqualityReport(conditions, verdict))
    return reports


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
