"""`exspec up`: the whole cluster as local processes, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from exspec.cli.common import DEFAULT_PORT, EXIT_FAILED, describe, open_console, tells_errors

if TYPE_CHECKING:
    from rich.console import Console

    from exspec.cli.cluster import LocalCluster, Progress

WATCH_SECONDS = 0.2


@tells_errors
def up(
    model: Annotated[
        str, typer.Option(help="Target model: name, directory or GGUF file.")
    ] = "smollm2-135m-instruct",
    draft_model: Annotated[
        str, typer.Option(help='Draft model; "ngram" for prompt look-up, "none" for no draft.')
    ] = "smollm2-draft",
    target: Annotated[int, typer.Option(min=1, help="Number of target workers.")] = 1,
    draft: Annotated[int, typer.Option(min=0, help="Number of draft workers.")] = 1,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the coordinator; 0 takes a free one.")
    ] = DEFAULT_PORT,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(min=0, max=64, help="Draft tokens per row and round.")
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=1024, help="Most rows a target verifies at once.")
    ] = 8,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Most tokens per sequence, prompt included.")
    ] = None,
    kv_layout: Annotated[
        Literal["slots", "padded"], typer.Option(help="How workers lay out their KV cache.")
    ] = "slots",
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16", "float64"],
        typer.Option(help="Element type of weights and KV."),
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, mps …")] = "auto",
    num_threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads per worker. Default: torch's choice.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for the logs. Default: a temporary one.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Of all processes.")
    ] = "info",
) -> None:
    """Run coordinator, target and draft workers here. Ready once a first text was generated."""
    from exspec.cli.cluster import LocalCluster
    from exspec.cli.cluster_plan import ClusterPlan

    console = open_console()
    plan = ClusterPlan(
        model=model,
        draft_model=draft_model,
        num_targets=target,
        num_drafts=draft,
        port=port,
        num_speculative_tokens=num_speculative_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        kv_layout=kv_layout,
        dtype=dtype,
        device=device,
        num_threads=num_threads,
        log_level=log_level,
        log_dir=log_dir,
    )
    cluster = LocalCluster(plan, on_progress=lambda progress: show_progress(console, progress))
    raise typer.Exit(run_until_stopped(cluster, console))


def run_until_stopped(cluster: LocalCluster, console: Console) -> int:
    """Start, watch, stop; the exit code."""
    from exspec.core.errors import RequestCancelledError

    stop = _stop_on_signals(cluster)
    try:
        with console.status("starting the cluster"):
            cluster.start()
            cluster.wait_ready()
        _show_ready(cluster, console)
        exit_code = _watch(cluster, console, stop)
    except RequestCancelledError:
        exit_code = 0
    except BaseException as error:
        cluster.stop()
        _show_failure(error, console)
        raise
    console.print("stopping …")
    cluster.stop()
    if exit_code == 0:
        cluster.remove_logs()
        console.print("stopped")
    return exit_code


def show_progress(console: Console, progress: Progress) -> None:
    """One line per step."""
    console.print(
        f"{progress.name:<12} {progress.phase:<10} {progress.detail}".rstrip(), markup=False
    )


def _stop_on_signals(cluster: LocalCluster) -> threading.Event:
    """Set by Ctrl-C and SIGTERM; a second one ends all processes at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.is_set():
            cluster.kill_all()
        stop.set()
        cluster.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def _watch(cluster: LocalCluster, console: Console, stop: threading.Event) -> int:
    """Until told to stop (0), or until the cluster cannot serve any more (1)."""
    while not stop.wait(WATCH_SECONDS):
        for child in cluster.new_deaths():
            error = child.died()
            if not cluster.can_serve():
                console.print(describe(error), style="red", markup=False)
                console.print(f"last lines of {child.log_path}:\n{error.log_tail}", markup=False)
                return EXIT_FAILED
            line = f"{describe(error)}; the cluster goes on without it"
            console.print(line, style="yellow", markup=False)
    return 0


def _show_failure(error: BaseException, console: Console) -> None:
    from exspec.cli.child import ChildDiedError

    if isinstance(error, ChildDiedError):
        console.print(f"last lines of {error.log_path}:\n{error.log_tail}", markup=False)


def _show_ready(cluster: LocalCluster, console: Console) -> None:
    from rich.table import Table

    table = Table("process", "pid", "address", box=None)
    addresses = cluster.addresses
    for name, pid in cluster.pids.items():
        table.add_row(name, str(pid), addresses.get(name, ""))
    console.print(table)
    console.print(f"logs in {cluster.log_dir}", markup=False)
    console.print("\nready. In another terminal:", style="green")
    console.print(f'  exspec generate --address {cluster.address} "Why is the sky blue?"')
    console.print(f"  exspec status --address {cluster.address}\n\nCtrl-C stops all processes.")
