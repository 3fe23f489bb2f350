"""`exspec up`: the whole cluster as local processes, until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

import typer

from exspec.cli.common import DEFAULT_PORT, EXIT_FAILED, describe, open_console, tells_errors
from exspec.cli.options import (
    BatchSize,
    ClusterSpeculation,
    Device,
    DraftModel,
    DraftSampleMethod,
    DraftVocab,
    DraftWeights,
    Dtype,
    GenerationConfig,
    KvLayout,
    LogDir,
    LogLevel,
    LookupMode,
    MaxModelLen,
    MaxNumSeqs,
    NumDrafts,
    NumTargets,
    NumThreads,
    Policy,
    Port,
    TargetModel,
    WindowSize,
)

if TYPE_CHECKING:
    from rich.console import Console

    from exspec.cli.cluster import LocalCluster, Progress

WATCH_SECONDS = 0.2


@tells_errors
def up(
    model: TargetModel = "smollm2-135m-instruct",
    draft_model: DraftModel = "smollm2-draft",
    target: NumTargets = 1,
    draft: NumDrafts = 1,
    port: Port = DEFAULT_PORT,
    policy: Policy = None,
    batch_size: BatchSize = None,
    window_size: WindowSize = None,
    num_speculative_tokens: ClusterSpeculation = None,
    generation_config: GenerationConfig = None,
    draft_sample_method: DraftSampleMethod = None,
    draft_vocab: DraftVocab = None,
    draft_weights: DraftWeights = None,
    lookup: LookupMode = None,
    max_num_seqs: MaxNumSeqs = None,
    max_model_len: MaxModelLen = None,
    kv_layout: KvLayout = "slots",
    dtype: Dtype = "auto",
    device: Device = "auto",
    num_threads: NumThreads = None,
    log_dir: LogDir = None,
    log_level: LogLevel = "info",
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
        policy=policy,
        batch_size=batch_size,
        window_size=window_size,
        num_speculative_tokens=num_speculative_tokens,
        generation_config=generation_config,
        draft_sample_method=draft_sample_method,
        draft_vocab=draft_vocab,
        draft_weights=draft_weights,
        lookup=lookup,
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
    """Set by Ctrl-C, SIGTERM and a closed terminal; a second one ends all processes at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.is_set():
            cluster.kill_all()
        stop.set()
        cluster.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
