"""`exspec bench targets`: throughput by number of targets, against the simulator's forecast.

Options, clusters and the table; what is measured and compared is in `exspec.bench.targets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
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
from exspec.cli.common import tells_errors
from exspec.core.ids import Role

if TYPE_CHECKING:
    from exspec.bench.runs import RunPlan
    from exspec.bench.targets import TargetsRuns, TargetsSample
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan

COLUMNS = (
    "targets",
    "tokens/s",
    "predicted",
    "measured /\npredicted",
    "x one target\nmeasured",
    "x one target\npredicted",
    "identical",
)


@tells_errors
def targets(
    targets: Annotated[str, typer.Option(help="Numbers of targets, with commas.")] = "1,2",
    batch_size: Annotated[
        int, typer.Option(min=2, help="Most rows a target verifies at once.")
    ] = 4,
    num_prompts: Annotated[int, typer.Option(min=2, help="Requests, all sent at once.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every request.")] = 48,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are cut to this.")
    ] = 64,
    pin: Annotated[
        bool, typer.Option(help="Give every target one core of its own (Linux).")
    ] = True,
    dataset: Dataset = "builtin",
    model: Model = "smollm2-135m-instruct",
    json_to: JsonTo = None,
) -> None:
    """Tokens per second with more targets, measured and as the simulator foretells them.

    Plain decoding on one thread per target. The costs come from the smallest cluster, which is
    always one target.
    """
    from exspec.audit.datasets import load_prompts, spread
    from exspec.bench.arguments import numbers_of
    from exspec.bench.runs import RunPlan
    from exspec.bench.targets import TargetsRuns

    numbers = sorted({1, *numbers_of("targets", targets)})
    texts = [prompt.text for prompt in spread(load_prompts(dataset), num_prompts)]
    runs = TargetsRuns()
    for number in numbers:
        plan = _cluster(model, number, batch_size)
        with local_cluster(plan) as cluster:
            if pin:
                _pin(cluster, number)
            if number == 1:
                runs.prompts = _tokenize(cluster, texts, max_prompt_tokens, num_prompts)
            _measure(cluster, RunPlan(max_tokens), number, batch_size, runs)
    title = f"{num_prompts} requests of {max_tokens} tokens, B = {batch_size} per target, plain"
    _tell(title, runs, batch_size, max_tokens, json_to)


def _cluster(model: str, num_targets: int, batch_size: int) -> ClusterPlan:
    from exspec.bench.targets import PLAIN_K, POLICY
    from exspec.cli.cluster_plan import NO_DRAFT, ClusterPlan

    return ClusterPlan(
        model=model,
        draft_model=NO_DRAFT,
        num_targets=num_targets,
        policy=POLICY,
        batch_size=batch_size,
        num_speculative_tokens=PLAIN_K,
        num_threads=1,
    )


def _pin(cluster: LocalCluster, num_targets: int) -> None:
    from exspec.bench.targets import pin

    for index in range(num_targets):
        pin(cluster.pids[f"{Role.TARGET.value}-{index}"], index)


def _tokenize(
    cluster: LocalCluster, texts: Sequence[str], max_length: int, number: int
) -> tuple[tuple[int, ...], ...]:
    from exspec.bench.load import repeated, tokenize_chats
    from exspec.client import Client

    with Client(cluster.address) as client:
        return repeated(tokenize_chats(client, texts, max_length).prompts, number)


def _measure(
    cluster: LocalCluster, plan: RunPlan, num_targets: int, batch_size: int, runs: TargetsRuns
) -> None:
    """One target also serves single rows, to see what a pass costs."""
    from exspec.bench.runs import measure_run

    if num_targets == 1:
        runs.measure_single_rows(cluster.address, plan)
    with steps() as progress:
        task = progress.add_task(f"targets: {num_targets}, requests", total=len(runs.prompts))
        runs.by_targets[num_targets] = measure_run(
            cluster.address,
            runs.prompts,
            plan,
            num_targets * batch_size,
            lambda: progress.advance(task),
        )


def _tell(
    title: str, runs: TargetsRuns, batch_size: int, max_tokens: int, json_to: str | None
) -> None:
    from exspec.bench.simulation_process import run_simulations
    from exspec.bench.targets import compared, simulated_plan

    costs, numbers = runs.costs(), sorted(runs.by_targets)
    plans = [
        simulated_plan(costs, number, batch_size, runs.prompts, max_tokens) for number in numbers
    ]
    foretold = [sample.tokens_per_second for sample in run_simulations(plans)]
    samples = compared(runs.by_targets, dict(zip(numbers, foretold, strict=True)))
    console = report_console(json_to)
    show_table(console, title, COLUMNS, _rows(samples))
    console.print(
        f"a pass: {_ms(costs.fixed_seconds)} + {_ms(costs.per_row_seconds)} per row + "
        f"{_ms(costs.per_token_seconds)} per token; wire {_ms(costs.wire_seconds)} one way"
    )
    write_json(json_to, {"costs": asdict(costs), "samples": [asdict(one) for one in samples]})


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"


def _rows(samples: Sequence[TargetsSample]) -> list[tuple[str, ...]]:
    first = samples[0]
    return [
        (
            str(one.num_targets),
            f"{one.measured:.1f}",
            f"{one.predicted:.1f}",
            f"{one.ratio:.2f}",
            f"{one.measured / first.measured:.2f}",
            f"{one.predicted / first.predicted:.2f}",
            f"{one.num_identical}/{one.num_requests}",
        )
        for one in samples
    ]
