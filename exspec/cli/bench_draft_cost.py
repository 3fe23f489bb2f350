"""`exspec bench draft-cost`: what drafting costs, by context and against the target's plain step.

Options and tables; what is measured is in `exspec.bench.draft_cost` and `exspec.bench.step_cost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.bench import JsonTo, report_console, show_table, steps, write_json
from exspec.cli.common import tells_errors

if TYPE_CHECKING:
    from rich.console import Console

    from exspec.bench.draft_cost import DraftCostPlan


@tells_errors
def draft_cost(
    model: Annotated[
        str, typer.Option(help="Draft model: name, directory or GGUF file.")
    ] = "smollm2-draft",
    contexts: Annotated[str, typer.Option(help="Context lengths, with commas.")] = "128,1024",
    num_speculative_tokens: Annotated[
        int, typer.Option(min=1, max=64, help="Draft tokens per round.")
    ] = 5,
    num_rounds: Annotated[int, typer.Option(min=1, help="Rounds per context.")] = 20,
    target: Annotated[
        str, typer.Option(help="Also a draft step as a share of this model's plain step.")
    ] = "",
    batch_sizes: Annotated[
        str, typer.Option(help="Rows of the steps compared with --target, with commas.")
    ] = "1,2,4,8",
    draft_weights: Annotated[
        str, typer.Option(help="As of a draft worker: auto, int8, bfloat16, full or modules.")
    ] = "auto",
    json_to: JsonTo = None,
) -> None:
    """Time to draft K tokens against the length of the context; the ratios are the result.

    With --target the cost of one draft step against the target's plain step, on the first context.
    """
    from exspec.bench import report_draft
    from exspec.bench.arguments import numbers_of, weights_of
    from exspec.bench.draft_cost import DraftCostPlan, measure_draft_cost

    lengths = numbers_of("contexts", contexts)
    sizes = numbers_of("batch_sizes", batch_sizes)
    weights = weights_of(draft_weights)
    plan = DraftCostPlan(model, lengths, num_speculative_tokens, num_rounds, weights)
    with steps() as progress:
        task = progress.add_task("rounds", total=num_rounds * (len(lengths) + 1))
        costs = measure_draft_cost(plan, lambda: progress.advance(task))
    console = report_console(json_to)
    title = f"drafting with {model}, K = {num_speculative_tokens}, {num_rounds} rounds per context"
    rows = report_draft.draft_cost_rows(costs)
    show_table(console, title, report_draft.DRAFT_COST_COLUMNS, rows)
    for line in report_draft.draft_cost_lines(costs):
        console.print(line, markup=False)
    report = report_draft.draft_cost_dict(plan, costs)
    if target:
        report["steps"] = _compare_steps(console, plan, target, sizes)
    write_json(json_to, report)


def _compare_steps(
    console: Console, plan: DraftCostPlan, target: str, batch_sizes: tuple[int, ...]
) -> list[dict[str, object]]:
    """The table of steps; its figures for JSON."""
    from exspec.bench import report_draft
    from exspec.bench.step_cost import StepCostPlan, measure_step_cost
    from exspec.engine.loading import ModelSettings

    draft = ModelSettings(plan.model, device="cpu", draft_weights=plan.draft_weights)
    compared = StepCostPlan(
        draft,
        ModelSettings(target, device="cpu"),
        batch_sizes,
        min(plan.contexts),
        plan.num_rounds,
    )
    with steps() as progress:
        task = progress.add_task("steps", total=plan.num_rounds * len(batch_sizes))
        costs = measure_step_cost(compared, lambda: progress.advance(task))
    title = f"a step of {plan.model} against one of {target}, context {compared.context}"
    rows = report_draft.step_cost_rows(costs)
    show_table(console, title, report_draft.STEP_COST_COLUMNS, rows)
    return report_draft.step_cost_dict(costs)
