"""Options that describe a local cluster, as `exspec up` and others take them. Types only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

TargetModel = Annotated[str, typer.Option(help="Target model: name, directory or GGUF file.")]
DraftModel = Annotated[
    str, typer.Option(help='Draft model; "ngram" for prompt look-up, "none" for no draft.')
]
NumTargets = Annotated[int, typer.Option(min=1, help="Number of target workers.")]
NumDrafts = Annotated[int, typer.Option(min=0, help="Number of draft workers.")]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the coordinator; 0 takes a free one.")
]
Policy = Annotated[
    Literal["eqspec", "exspec", "eqspec-static", "exspec-paper"] | None,
    typer.Option(help="How rows are put into batches. Default: the coordinator's."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1, max=1024, help="Most rows a target verifies at once. Default: --max-num-seqs."
    ),
]
WindowSize = Annotated[
    int | None,
    typer.Option(
        min=1, max=1024, help="Sequences in play on a target. Default: the coordinator's."
    ),
]
ClusterSpeculation = Annotated[
    str | None,
    typer.Option(
        metavar="K",
        help='Draft tokens per row and round: "auto", "auto:8" (at most 8), a number, or a JSON '
        "table [\\[from rows, to rows, K], …]. Default: the coordinator's.",
    ),
]
GenerationConfig = Annotated[
    Literal["auto", "none"] | None,
    typer.Option(
        help="Parameters a request leaves out: what the model's generation_config.json says, or "
        "greedy decoding. Default: the coordinator's, auto."
    ),
]
DraftSampleMethod = Annotated[
    Literal["shared", "greedy"] | None,
    typer.Option(
        help="How drafts are chosen for sampled requests: with the target's noise, or the "
        "likeliest. Default: the draft worker's, shared."
    ),
]
DraftVocab = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|N|all",
        help="Tokens the draft chooses among: a JSON list of token ids, the N likeliest, or all. "
        "Default: what the draft brings in draft_vocab.json, else all.",
    ),
]
DraftWeights = Annotated[
    Literal["auto", "int8", "bfloat16", "full", "modules"] | None,
    typer.Option(
        help="Weights a draft of the Llama family computes with on a CPU. Default: the draft "
        "worker's, auto."
    ),
]
LookupMode = Annotated[
    Literal["beside", "off"] | None,
    typer.Option(
        help="Whether a draft model is helped by looking tokens up in the prompt and the answer so "
        "far. Default: the draft worker's, beside."
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        min=1, max=1024, help="Sequences a target can hold. Default: --window-size, or 8."
    ),
]
MaxModelLen = Annotated[
    int | None, typer.Option(min=2, help="Most tokens per sequence, prompt included.")
]
KvLayout = Annotated[
    Literal["slots", "padded"], typer.Option(help="How workers lay out their KV cache.")
]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    typer.Option(help="Element type of weights and KV."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, mps …")]
NumThreads = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPU threads per worker. Default: torch's choice, or a share of the cores."
    ),
]
LogDir = Annotated[Path | None, typer.Option(help="Folder for the logs. Default: a temporary one.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option(help="Of all processes.")
]
