"""What `exspec audit` does: prompts to a cluster, answers to the judge. No options, no tables.

Load comes from `exspec.bench.load`, the judgement from `exspec.audit`; this is the one place where
they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exspec.cli.bench import local_cluster, steps
from exspec.cli.connect import Connect

if TYPE_CHECKING:
    from exspec.audit.equality import Answer, Question
    from exspec.audit.report import Conditions, EqualityReport
    from exspec.audit.sampled import AuditedSampling
    from exspec.bench.load import LoadOutcome, TokenizedPrompts
    from exspec.client import Client, ServedModel
    from exspec.core.cluster import ClusterStatus, WorkerInfo

DEFAULT_MODEL = "smollm2-135m-instruct"
_STATUS_SECONDS = 10.0
_LOCAL_SPECULATION = 5
"""Draft tokens where nothing else was asked for: a cluster that decides might not speculate."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line."""

    dataset: str
    num_prompts: int | None
    max_tokens: int
    batch_size: int
    is_chat: bool
    max_prompt_tokens: int
    num_speculative_tokens: int | None
    sampling: AuditedSampling


@dataclass(frozen=True, slots=True)
class Served:
    """What one cluster answered."""

    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    targets: tuple[WorkerInfo, ...]
    conditions: Conditions


def ask_local(wish: Wish, layout: str, model: str, draft_model: str) -> Served:
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
        return ask(wish, Connect(cluster.address))


def ask(wish: Wish, connect: Connect) -> Served:
    """Send all prompts to a running cluster."""
    from exspec.audit.datasets import load_prompts
    from exspec.audit.equality import Question
    from exspec.bench.load import LoadPlan, run_load
    from exspec.client import GenerateOptions

    prompts = load_prompts(wish.dataset, wish.num_prompts)
    options: GenerateOptions = {
        **wish.sampling.options,
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
    stops = wish.sampling.ending_token_ids(served_model.stop_token_ids)
    questions = tuple(
        Question(prompt.prompt_id, prompt.category, tokens, wish.sampling.rules(len(tokens), stops))
        for prompt, tokens in zip(prompts, tokenized.prompts, strict=True)
    )
    conditions = _conditions(wish, served_model, tokenized, outcome, (before, after))
    return Served(questions, _answers(outcome), _targets(after), conditions)


def _tokenize(
    client: Client, wish: Wish, model: ServedModel, texts: Sequence[str]
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
    wish: Wish,
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
        stop_token_ids=wish.sampling.ending_token_ids(model.stop_token_ids),
        sampling=wish.sampling.summary,
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


def judge(
    served: Sequence[Served], model: str, dtype: str, reference_cache: Path | None
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
            references = decoder.decode_all(
                one.questions, first.max_tokens, stops, lambda: progress.advance(task)
            )
            verdict = judge_answers(one.questions, references, one.answers, stops, decoder)
            conditions = replace(one.conditions, reference_dtype=decoder.facts.dtype)
            reports.append(EqualityReport(conditions, verdict))
    return reports
