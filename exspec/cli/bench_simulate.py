"""`exspec bench simulate`: the real scheduler under virtual time, with modelled workers.

Options, progress, tables and files; the runs are in `exspec.bench.simulation*`, the simulator is
`python -m coordinator.simulation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.bench import JsonTo, report_console, show_table, steps, write_json
from exspec.cli.common import exits_on_sigterm, tells_errors
from exspec.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from exspec.bench.simulation import Document, Findings, RunPlan, Sample, Study

FULL = 100
"""Progress is told in percent of a run."""


@tells_errors
def simulate(
    scenario: Annotated[
        str | None,
        typer.Option(help="scaling, paper or cost: a set of runs of its own; only --seed matters."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="Costs: cpu-pair, data-centre, paper, or a JSON file of coefficients."),
    ] = "cpu-pair",
    policies: Annotated[str, typer.Option(help="Policies, with commas.")] = "eqspec,exspec",
    batch_sizes: Annotated[str, typer.Option(help="Rows per verify (B), with commas.")] = "8",
    window_size: Annotated[
        int | None, typer.Option(min=1, help="Rows that live on a target (W). Default: B.")
    ] = None,
    num_speculative_tokens: Annotated[
        list[str] | None,
        typer.Option(help="K, as the coordinator takes it; may be given several times."),
    ] = None,
    targets: Annotated[str, typer.Option(help="Numbers of targets, with commas.")] = "1",
    drafts: Annotated[str, typer.Option(help="Numbers of draft workers, with commas.")] = "1",
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 200,
    prompt_tokens: Annotated[
        str, typer.Option(help='"64", "16..128" (uniform) or "16,20,31" (in turn).')
    ] = "16..128",
    output_tokens: Annotated[str, typer.Option(help="As prompt tokens.")] = "128",
    acceptance: Annotated[
        str, typer.Option(help='Chance that a draft token is accepted: "0.7" or "beta:7,3" a row.')
    ] = "0.7",
    arrivals: Annotated[
        str, typer.Option(help="all, closed:N (in flight), poisson:RATE (a second) or trace:FILE.")
    ] = "all",
    wire_ms: Annotated[
        str | None, typer.Option(help="Wire per direction, with commas. Default: the preset's.")
    ] = None,
    kv_layout: Annotated[str, typer.Option(help="slots or padded.")] = "slots",
    max_wait_rounds: Annotated[
        int | None, typer.Option(min=0, help="Ageing bound. Default: the coordinator's.")
    ] = None,
    max_batches_in_flight: Annotated[int, typer.Option(min=1, help="Per worker.")] = 2,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECONDS:KIND:WORKER[:FACTOR]",
            help='join, leave, die or speed of "target-0", "draft-1", ...; several times.',
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    json_to: JsonTo = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the figures; .png or .svg.")
    ] = None,
) -> None:
    """Run the real scheduler with modelled workers, thousands of requests in seconds.

    One line per combination. Exit code 0 even if an expectation is missed: it is said.
    """
    from exspec.bench.simulation import RunPlan
    from exspec.bench.simulation_arguments import changes_of, costs_of, trace_of

    if plot is not None:
        from exspec.bench.simulation_plots import check_plot

        check_plot(plot)
    if scenario is not None:
        _run(_scenario(scenario, seed), (), json_to, plot)
        return
    trace = trace_of(arrivals)
    base = RunPlan(
        costs=costs_of(preset),
        window_size=window_size,
        max_wait_rounds=max_wait_rounds,
        max_batches_in_flight=max_batches_in_flight,
        kv_layout=kv_layout,
        changes=changes_of(change or ()),
        num_requests=len(trace) or requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        acceptance=acceptance,
        arrivals="all" if trace else arrivals,
        seed=seed,
    )
    texts = _Texts(
        policies, batch_sizes, num_speculative_tokens or ["auto"], targets, drafts, wire_ms
    )
    _run(_sweep(base, texts), trace, json_to, plot)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Options that stand for several runs, as they were given."""

    policies: str
    batch_sizes: str
    num_speculative_tokens: Sequence[str]
    targets: str
    drafts: str
    wire_ms: str | None


def _sweep(base: RunPlan, texts: _Texts) -> Study:
    from exspec.bench.arguments import numbers_of
    from exspec.bench.simulation_arguments import counts_of, milliseconds_of
    from exspec.bench.simulation_sweep import sweep

    values = {
        "policy": texts.policies.split(","),
        "batch_size": numbers_of("batch_sizes", texts.batch_sizes),
        "num_speculative_tokens": texts.num_speculative_tokens,
        "num_targets": numbers_of("targets", texts.targets),
        "num_drafts": counts_of("drafts", texts.drafts),
        "wire_milliseconds": milliseconds_of("wire_ms", texts.wire_ms),
    }
    return sweep(base, values)


def _scenario(name: str, seed: int) -> Study:
    from exspec.bench.simulation_cost import cost_study
    from exspec.bench.simulation_paper import paper_study
    from exspec.bench.simulation_scaling import scaling_study

    studies: dict[str, Callable[[], Study]] = {
        "scaling": lambda: scaling_study(seed=seed),
        "paper": lambda: paper_study(seed=seed),
        "cost": lambda: cost_study(seed=seed),
    }
    if name not in studies:
        raise InvalidRequestError(
            f"unknown scenario {name!r}, expected one of {', '.join(studies)}", field="scenario"
        )
    return studies[name]()


def _run(study: Study, trace: Sequence[Document], json_to: str | None, plot: str | None) -> None:
    from exspec.bench.simulation_process import run_simulations

    total = FULL * len(study.plans)
    with exits_on_sigterm(), steps() as progress:
        task = progress.add_task("percent of runs", total=total)
        samples = run_simulations(
            study.plans,
            trace,
            lambda run, share: progress.update(task, completed=FULL * (run + share)),
        )
        progress.update(task, completed=total)
    findings = study.read(samples)
    _show(findings, json_to)
    _write(findings, samples, json_to)
    if plot is not None:
        from exspec.bench.simulation_plots import draw

        draw(findings.charts, plot)


def _show(findings: Findings, json_to: str | None) -> None:
    from exspec.bench.report import expectation_line

    console = report_console(json_to)
    for table in findings.tables:
        show_table(console, table.title, table.columns, table.rows)
    for expectation in findings.expectations:
        style = None if expectation.is_met else "red"
        console.print(expectation_line(expectation), style=style, markup=False)


def _write(findings: Findings, samples: Sequence[Sample], json_to: str | None) -> None:
    document = {
        "samples": [{"plan": sample.plan, "figures": sample.figures} for sample in samples],
        "expectations": [
            {"text": one.text, "measured": one.measured, "bound": one.bound, "is_met": one.is_met}
            for one in findings.expectations
        ],
    }
    write_json(json_to, document)
