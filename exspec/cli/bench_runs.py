"""What the benchmarks that compare clusters share: a cluster per configuration, progress, results.

No command lives here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from exspec.cli.bench import local_cluster, report_console, show_table, steps, write_json
from exspec.cli.common import EXIT_FAILED, exits_on_sigterm
from exspec.core.errors import ExspecError

if TYPE_CHECKING:
    from exspec.bench.load import TokenizedPrompts
    from exspec.bench.runs import Configuration, FailedRun, RunPlan, Runs, RunSample
    from exspec.bench.simulation import Chart
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan
    from exspec.client import Client

TokenIds = tuple[int, ...]
"""The coordinator's."""

LEAST_SECONDS = 900.0
SECONDS_A_PROMPT = 15.0
"""A request that nobody bounded fails after this for every one of the run, or after the other."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line, the same for all runs."""

    dataset: str
    num_prompts: int
    max_tokens: int
    max_prompt_tokens: int
    num_in_flight: int | None
    num_repeats: int
    request_seconds: float | None
    kv_layout: str
    model: str
    draft_model: str
    num_threads: int | None
    lookup: str | None = None
    draft_vocab: str | None = None
    ignore_eos: bool = True

    def run_plan(self) -> RunPlan:
        """What is sent to every cluster."""
        from exspec.bench.runs import RunPlan

        seconds = self.request_seconds or max(LEAST_SECONDS, SECONDS_A_PROMPT * self.num_prompts)
        return RunPlan(self.max_tokens, self.num_in_flight, seconds, self.ignore_eos)

    def cluster(self) -> ClusterPlan:
        """What all clusters have in common; the requests that warm them up fit, too."""
        from exspec.bench.runs import WARM_UP_TOKENS
        from exspec.cli.cluster_plan import ClusterPlan

        return ClusterPlan(
            model=self.model,
            draft_model=self.draft_model,
            draft_vocab=self.draft_vocab,
            lookup=self.lookup,
            max_model_len=self.max_prompt_tokens + max(self.max_tokens, WARM_UP_TOKENS),
            kv_layout=self.kv_layout,
            num_threads=self.num_threads,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Which clusters are compared, on which prompts (by name of the set)."""

    wish: Wish
    configurations: Sequence[Configuration]
    prompts: Mapping[str, Sequence[TokenIds]]
    window_of: Callable[[Configuration], int | None]

    def cluster_of(self, one: Configuration) -> ClusterPlan:
        """The cluster of a configuration; plain decoding has no draft worker."""
        from exspec.bench.policies import EQSPEC, PLAIN
        from exspec.cli.cluster_plan import NO_DRAFT

        is_plain = one.policy == PLAIN
        window = self.window_of(one)
        return replace(
            self.wish.cluster(),
            policy=EQSPEC if is_plain else one.policy,
            draft_model=NO_DRAFT if is_plain else self.wish.draft_model,
            batch_size=one.batch_size,
            window_size=window,
            num_speculative_tokens=one.speculation,
        )


@dataclass(frozen=True, slots=True)
class Telling:
    """How results are told: the table's title, columns and rows, the lines under it, the rest."""

    title: str
    columns: Sequence[str]
    rows_of: Callable[[Runs], Sequence[Sequence[str]]]
    lines_of: Callable[[Runs], Sequence[tuple[str, bool]]]
    document_of: Callable[[Runs], dict[str, object]]
    charts_of: Callable[[Runs], Sequence[Chart]]
    json_to: str | None
    plot_to: str | None


def check_plot_path(plot_to: str | None) -> None:
    """Say now, not after hours, that the picture cannot be made."""
    if plot_to is not None:
        from exspec.bench.simulation_plots import check_plot

        check_plot(plot_to)


def tokenize(
    wish: Wish, texts: Sequence[str], cut: Callable[[Client, Sequence[str], int], TokenizedPrompts]
) -> tuple[TokenIds, ...]:
    """Texts as the coordinator tokenizes them: a cluster is started for that alone."""
    from exspec.cli.cluster_plan import NO_DRAFT
    from exspec.client import Client

    plan = replace(wish.cluster(), draft_model=NO_DRAFT)
    with local_cluster(plan) as cluster, Client(cluster.address) as client:
        return cut(client, texts, wish.max_prompt_tokens).prompts


def compare(comparison: Comparison, telling: Telling) -> None:
    """Measure all, then tell; exit code 1 if a run failed.

    Hours of work are not lost with the last run: what is known is written as JSON after each, and
    told after Ctrl-C, too.
    """
    from exspec.bench.runs import Runs

    runs = Runs()
    try:
        _measure(comparison, telling, runs)
    except KeyboardInterrupt:
        _tell(telling, runs)
        raise
    _tell(telling, runs)
    if runs.failures:
        raise typer.Exit(EXIT_FAILED)


def _tell(telling: Telling, runs: Runs) -> None:
    from exspec.bench.report_runs import run_line

    console = report_console(telling.json_to)
    show_table(console, telling.title, telling.columns, telling.rows_of(runs))
    for line, is_good in telling.lines_of(runs):
        console.print(line, style=None if is_good else "red", markup=False)
    for failure in runs.failures:
        console.print(run_line(failure.configuration, failure), style="red", markup=False)
    write_json(telling.json_to, telling.document_of(runs))
    if telling.plot_to is not None:
        from exspec.bench.simulation_plots import draw

        draw(telling.charts_of(runs), telling.plot_to)


def _measure(comparison: Comparison, telling: Telling, runs: Runs) -> None:
    from exspec.bench.report_runs import run_line
    from exspec.bench.runs import measure_run, run_all
    from exspec.cli.cluster import LocalCluster

    wish, configurations = comparison.wish, comparison.configurations
    with exits_on_sigterm(), steps() as progress:
        all_runs = progress.add_task("runs", total=len(configurations) * wish.num_repeats)
        requests = progress.add_task("requests")

        def measure(one: Configuration) -> RunSample:
            prompts = comparison.prompts[one.prompt_set]
            progress.reset(requests, total=len(prompts), description=one.name)
            with LocalCluster(comparison.cluster_of(one)) as cluster, names_the_dead(cluster):
                return measure_run(
                    cluster.address,
                    prompts,
                    wish.run_plan(),
                    one.batch_size,
                    lambda: progress.advance(requests),
                )

        def note(one: Configuration, outcome: RunSample | FailedRun) -> None:
            progress.advance(all_runs)
            progress.console.print(run_line(one, outcome), markup=False, highlight=False)
            if telling.json_to != "-":
                write_json(telling.json_to, telling.document_of(runs))

        run_all(configurations, wish.num_repeats, measure, runs, note)


@contextlib.contextmanager
def names_the_dead(cluster: LocalCluster) -> Iterator[None]:
    """A request that fails because a process has ended fails with that process's last words."""
    try:
        yield
    except ExspecError as error:
        for child in cluster.new_deaths():
            raise child.died() from error
        raise
