"""`exspec status`: workers and totals of a running cluster."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.common import (
    EXIT_FAILED,
    AsJson,
    open_console,
    plain,
    print_json,
    tells_errors,
)
from exspec.cli.connect import Connect, connects

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from exspec.client import Client
    from exspec.core.cluster import ClusterStatus, Totals

STATUS_SECONDS = 5.0


@tells_errors
@connects
def status(
    connect: Connect,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks, with --watch.")
    ] = 1.0,
) -> None:
    """Show workers and totals. Exit code 0 if the cluster can serve, 1 if not."""
    with connect.client(max_retries=0) as client:
        if watch:
            _watch(client, interval)
            return
        state = client.cluster_status(timeout=STATUS_SECONDS)
    if as_json:
        print_json(as_dict(state))
    else:
        open_console().print(view(state))
    if not state.is_ready:
        raise typer.Exit(EXIT_FAILED)


def as_dict(state: ClusterStatus) -> dict[str, object]:
    """All facts, with what is computed from them."""
    facts = plain(state)
    assert isinstance(facts, dict)
    totals = state.totals
    return {
        **facts,
        "acceptance_length": totals.acceptance_length,
        "acceptance_rate": acceptance_rate(totals),
        "grouping_rate": totals.grouping_rate,
        "mean_draft_tokens": totals.mean_draft_tokens,
        "round_shares": round_shares(totals),
    }


def acceptance_rate(totals: Totals) -> float:
    """Share of the draft tokens that were accepted; 0 without drafts."""
    return totals.num_accepted_tokens / totals.num_draft_tokens if totals.num_draft_tokens else 0.0


def round_shares(totals: Totals) -> dict[str, float]:
    """Where the time of the rounds went; the rest is gRPC and scheduling."""
    if totals.round_seconds <= 0:
        return {}
    parts = {
        "draft": totals.draft_seconds,
        "verify": totals.verify_seconds,
        "align": totals.align_seconds,
        "worker_overhead": totals.worker_overhead_seconds,
    }
    shares = {name: seconds / totals.round_seconds for name, seconds in parts.items()}
    return {**shares, "grpc_and_scheduling": 1 - sum(shares.values())}


def view(state: ClusterStatus) -> RenderableType:
    """The cluster as tables."""
    from rich.console import Group
    from rich.markup import escape

    readiness = "[green]ready[/]" if state.is_ready else "[red]not ready[/]"
    head = (
        f"{readiness}  model {escape(state.model) or '(none yet)'}  policy {state.policy}  "
        f"window {state.window_size}  K = {escape(state.speculation)}  "
        f"running {state.num_running}  waiting {state.num_waiting}/{state.max_waiting}  "
        f"up {state.uptime_seconds:.0f} s"
    )
    pools = [_pools(state)] if len(state.pools) > 1 else []
    return Group(head, *pools, _workers(state), _totals(state))


def _pools(state: ClusterStatus) -> Table:
    """One line per served model."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        "model", "state", "targets", "drafts", "running", "waiting", "tokens",
        "acceptance length", "speed-up", box=None,
    )  # fmt: skip
    for pool in state.pools:
        table.add_row(
            escape(pool.name),
            "[green]ready[/]" if pool.is_ready else "[red]not ready[/]",
            str(pool.num_targets),
            str(pool.num_drafts),
            str(pool.num_running),
            str(pool.num_waiting),
            str(pool.totals.num_generated_tokens),
            f"{pool.totals.acceptance_length:.2f}",
            _speedup(pool.measured_speedup or pool.predicted_speedup),
        )
    return table


def _workers(state: ClusterStatus) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("worker", "role", "state", "model", "sequences", "KV", "heartbeat", box=None)
    has_pools = len(state.pools) > 1
    if has_pools:
        table.add_column("serves")
    has_reasons = any(worker.reason for worker in state.workers)
    if has_reasons:
        table.add_column("reason", overflow="fold")
    for status in state.workers:
        worker = status.worker
        layout = f"{worker.kv_layout} {worker.kv_bytes / 2**20:.0f} MiB" if worker.kv_layout else ""
        cells = [
            worker.worker_id,
            worker.role.value,
            status.state.value,
            worker.model.name,
            f"{status.num_sequences}/{worker.num_slots}",
            layout,
            f"{status.heartbeat_age_seconds:.1f} s",
        ]
        cells += [status.pool] if has_pools else []
        cells += [status.reason] if has_reasons else []
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _totals(state: ClusterStatus) -> Table:
    from rich.table import Table

    totals = state.totals
    table = Table(box=None, show_header=False)
    shares = "  ".join(f"{name} {share:.1%}" for name, share in round_shares(totals).items())
    rows = {
        "requests": f"{totals.num_requests} ({totals.num_failed_requests} failed)",
        "tokens": f"{totals.num_generated_tokens} generated, {totals.num_prompt_tokens} in prompts",
        "rounds": f"{totals.num_rounds} ({totals.num_row_rounds} rows), "
        f"{totals.grouping_rate:.1%} grouped",
        "acceptance length": f"{totals.acceptance_length:.2f}",
        "acceptance rate": f"{acceptance_rate(totals):.1%} of {totals.num_draft_tokens} drafted",
        "by source": f"{_part(totals.num_accepted_model_tokens, totals.num_model_tokens)} by a "
        f"model, {_part(totals.num_accepted_looked_up_tokens, totals.num_looked_up_tokens)} "
        "looked up",
        "draft tokens per row": f"{totals.mean_draft_tokens:.2f} on average, "
        f"{totals.num_plain_row_rounds} rows without",
        "speed-up": f"predicted {_speedup(state.predicted_speedup)}, "
        f"measured {_speedup(state.measured_speedup)}",
        "draft failures": f"{totals.num_draft_failures} ({totals.num_overdue_drafts} overdue)",
        "rows moved": str(totals.num_moved_rows),
        "a round's time": shares or "no round yet",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _part(num_accepted: int, num_drafted: int) -> str:
    """What became of some draft tokens."""
    rate = num_accepted / num_drafted if num_drafted else 0.0
    return f"{rate:.1%} of {num_drafted}"


def _speedup(factor: float) -> str:
    return f"{factor:.2f} x" if factor else "not known yet"


def _watch(client: Client, interval: float) -> None:
    from rich.live import Live

    console = open_console()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                state = client.cluster_status(timeout=STATUS_SECONDS)
                live.update(view(state), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        sys.stdout.flush()
