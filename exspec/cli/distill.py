"""`exspec distill`: makes a draft model for a target.

Options, and the table at the end. The work is `exspec.distill`, what is shown meanwhile
`distill_watch`.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from exspec.cli.common import AsJson, fail, open_console, print_json, tells_errors
from exspec.cli.options import Device, Dtype, NumThreads
from exspec.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.table import Table

    from exspec.distill.imitation import HeldOut
    from exspec.distill.pipeline import DistillReport
    from exspec.distill.plan import DistillPlan
    from exspec.distill.run import Outcome


@tells_errors
def distill(
    target: Annotated[str, typer.Option(help="Target model: name, directory or GGUF file.")],
    out: Annotated[Path, typer.Option(help="Directory of the draft; work in progress, too.")],
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers. Default: as many as --from-layers, or 3.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width. Default: the target's.")] = None,
    from_layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help="The target's layers to start from, from 0. Default: spread over all.",
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(help="A draft to train further, or to let grow to more --layers."),
    ] = None,
    draft_vocab: Annotated[
        int, typer.Option(min=0, help="Tokens to draft over, the most frequent; 0 for all.")
    ] = 12_288,
    tokens: Annotated[
        int, typer.Option(min=1, help="Answer tokens of training text to make.")
    ] = 2_000_000,
    epochs: Annotated[float, typer.Option(help="How often each is trained on.")] = 4.0,
    minutes: Annotated[
        float | None,
        typer.Option(help="Pause after about so long; the same command goes on. Default: never."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='File of prompts: one a line, or JSON lines {"prompt": …} (.jsonl). Plain text '
            "where the target has no chat template. Default: the target writes its own."
        ),
    ] = None,
    labels: Annotated[
        int,
        typer.Option(
            min=1, help="Likeliest tokens of the target kept per position; 1: its choice."
        ),
    ] = 16,
    learning_rate: Annotated[float, typer.Option(help="Highest; it rises first, then falls.")] = (
        6e-4
    ),
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are left out.")
    ] = 768,
    max_answer_tokens: Annotated[int, typer.Option(min=1, help="Answers are cut there.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    num_threads: NumThreads = None,
    gguf_file: Annotated[
        str | None, typer.Option(help="GGUF file inside the target's directory.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Of a target on the hub.")] = None,
    embedding_type: Annotated[
        Literal["target", "q8_0", "q4_1", "f16"],
        typer.Option(help="How a .gguf draft stores its embedding: as the target's file, or so."),
    ] = "target",
    as_json: AsJson = False,
) -> None:
    """Make a draft model for a target, from text that the target writes.

    The same command goes on where an interrupted one stopped, and comes to the same result. Exit
    code 0 also when --minutes are over, 130 or 143 after a signal.
    """
    from exspec.distill.plan import DistillPlan, EmbeddingType

    chosen = _layers_of(from_layers)
    plan = DistillPlan(
        target=target,
        out=out,
        num_layers=layers or len(chosen) or 3,
        hidden_size=hidden,
        from_layers=chosen,
        draft_vocab=draft_vocab,
        num_tokens=tokens,
        num_epochs=epochs,
        minutes=minutes,
        device=device,
        dtype=dtype,
        seed=seed,
        prompts=prompts,
        num_labels=labels,
        learning_rate=learning_rate,
        max_prompt_tokens=max_prompt_tokens,
        max_answer_tokens=max_answer_tokens,
        gguf_file=gguf_file,
        revision=revision,
        embedding_type=EmbeddingType(embedding_type),
        start_from=start_from,
    )
    _carry_out(plan, num_threads, as_json)


def _layers_of(listed: str | None) -> tuple[int, ...]:
    """`0,1,29` as numbers."""
    if listed is None:
        return ()
    try:
        return tuple(int(part) for part in listed.split(","))
    except ValueError as error:
        raise InvalidRequestError(
            f"--from-layers {listed!r} is no list of numbers such as 0,1,29", field="from_layers"
        ) from error


def _carry_out(plan: DistillPlan, num_threads: int | None, as_json: bool) -> None:
    """Do the work, and show what came of it."""
    try:
        import torch

        from exspec.distill.run import carry_out
    except ModuleNotFoundError as error:
        fail(f"exspec distill needs the extra worker, pip install 'exspec[worker]': {error}")
    from exspec.cli.distill_watch import ShownProgress, ends_on_signals

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    with ends_on_signals() as ending, ShownProgress(ending) as progress:
        outcome = carry_out(plan, progress)
    if as_json:
        print_json(_document(plan, outcome))
    else:
        _show(plan, outcome)
    if not outcome.report.is_complete and ending.signal_number:
        raise typer.Exit(128 + ending.signal_number)


def _document(plan: DistillPlan, outcome: Outcome) -> dict[str, Any]:
    """A run as JSON."""
    report = outcome.report
    return {
        "plan": plan.as_dict(),
        **asdict(report),
        "files": [str(path) for path in report.files],
        "acceptance_length": {
            name: found.acceptance_length for name, found in _measured(report).items()
        },
        "architecture": outcome.forecast.architecture,
        "layers": outcome.forecast.layers,
        "num_trained_parameters": outcome.forecast.num_trained,
        "num_runs": outcome.num_runs,
        "seconds": outcome.seconds,
    }


def _measured(report: DistillReport) -> dict[str, HeldOut]:
    """What was measured, by how the draft was when it was."""
    both = {"as trained": report.held_out, "as stored": report.as_stored}
    return {name: found for name, found in both.items() if found is not None}


def _show(plan: DistillPlan, outcome: Outcome) -> None:
    report = outcome.report
    console = open_console()
    if not report.is_complete:
        console.print(
            f"not finished: {report.num_answer_tokens:,} of {plan.num_tokens:,} answer tokens of "
            f"text, {report.num_steps:,} training steps; run the same command to go on",
            markup=False,
            soft_wrap=True,
        )
        return
    if measured := _measured(report):
        console.print(_table(measured))
    else:
        console.print("not measured: all text comes from one prompt", markup=False, soft_wrap=True)
    size = sum(path.stat().st_size for path in report.files)
    console.print(
        f"{outcome.forecast.architecture}, {report.num_parameters:,} parameters, drafting over "
        f"{report.vocabulary_size:,} tokens; {size / 1e6:.1f} MB in {plan.out}; "
        f"{outcome.seconds:,.0f} seconds in all",
        markup=False,
        soft_wrap=True,
    )
    command = shlex.join(["exspec", "up", "--model", plan.target, "--draft-model", str(plan.out)])
    console.print(f"serve it: {command}", markup=False, soft_wrap=True)


def _table(measured: dict[str, HeldOut]) -> Table:
    """Acceptance by position."""
    from rich.table import Table

    first = next(iter(measured.values()))
    table = Table(
        title=f"On {first.num_positions:,} positions of text it was not trained on, greedy"
    )
    table.add_column("the draft")
    table.add_column("first choice\nis the target's", justify="right")
    for index in range(len(first.by_position)):
        table.add_column(f"first {index + 1}\naccepted", justify="right")
    table.add_column(f"acceptance length\nat K = {len(first.by_position)}", justify="right")
    for name, found in measured.items():
        table.add_row(
            name,
            f"{found.match_rate:.1%}",
            *(f"{share:.1%}" for share in found.by_position),
            f"{found.acceptance_length:.2f}",
        )
    return table
