"""`exspec generate`: one prompt, text to stdout, figures to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from exspec.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    AsJson,
    describe,
    print_json,
    tells_errors,
)
from exspec.cli.connect import Connect, connects
from exspec.cli.generation_report import as_json as all_of
from exspec.cli.generation_report import figures, logprobs_table, token_ids_of
from exspec.cli.sampling_options import LENGTH, Sampling, samples
from exspec.core.errors import CallerError, ExspecError

if TYPE_CHECKING:
    from exspec.client import Client, GenerateOptions, GenerationResult, GenerationStream
    from exspec.core.generation import ChatMessage


PromptText = Annotated[str, typer.Argument(help='What to continue or answer; "-" reads stdin.')]
Chat = Annotated[
    bool, typer.Option(help="Apply the model's chat template, or continue the bare text.")
]
System = Annotated[str, typer.Option(help="System message, with --chat.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=LENGTH, help="Most tokens to generate. Default: 256, if they fit."
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(rich_help_panel=LENGTH, help="String that ends the text; may be given again."),
]
Number = Annotated[
    int, typer.Option("--n", metavar="N", help="So many texts, each with a seed of its own.")
]
Speculation = Annotated[
    int | None,
    typer.Option(help="Draft tokens per round; 0 = plain decoding. Default: the cluster's."),
]
Priority = Annotated[int, typer.Option(help="Turn in the queue, -1000 to 1000: lower is sooner.")]
Model = Annotated[str, typer.Option(help="Served name; empty: the only one.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds for the whole.")]
Stream = Annotated[bool, typer.Option("--stream/--no-stream", help="Print the text as it comes.")]


@tells_errors
@connects
@samples
def generate(
    connect: Connect,
    sampling: Sampling,
    prompt: PromptText,
    chat: Chat = True,
    system: System = "",
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    n: Number = 1,
    num_speculative_tokens: Speculation = None,
    priority: Priority = 0,
    model: Model = "",
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
    stream: Stream = True,
) -> None:
    """Generate text. What is generated never depends on how far one speculates.

    What no option says is as the model's makers advise (its generation_config.json), else greedy.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    asked = _messages(text, system) if chat else text
    own: GenerateOptions = {
        "max_tokens": max_tokens,
        "stop": stop,
        "num_speculative_tokens": num_speculative_tokens,
        "priority": priority,
        "model": model,
        "timeout": timeout,
    }
    options = cast("GenerateOptions", {**sampling, **own})
    with connect.client() as client:
        if n == 1:
            _one(client, asked, options, shows_stream=stream, as_json=as_json)
        else:
            _several(client.generate_batch([asked], **options, n=n), as_json=as_json)


def _one(
    client: Client,
    prompt: str | list[ChatMessage],
    options: GenerateOptions,
    *,
    shows_stream: bool,
    as_json: bool,
) -> None:
    with client.stream(prompt, **options) as events:
        result = _show(events) if shows_stream and not as_json else events.final()
    if as_json:
        print_json(all_of(result))
        return
    sys.stdout.write("\n" if shows_stream else result.text + "\n")
    sys.stdout.flush()
    _show_logprobs(client, result, options.get("model") or "")
    sys.stderr.write(figures(result) + "\n")


def _several(results: Sequence[GenerationResult | ExspecError], *, as_json: bool) -> None:
    """Texts one after the other; those that failed are told, and then the command fails, too."""
    errors = [result for result in results if isinstance(result, ExspecError)]
    if as_json:
        print_json([_json_of(result) for result in results])
    else:
        for index, result in enumerate(results):
            sys.stdout.write(f"--- {index + 1} of {len(results)}\n")
            sys.stdout.flush()
            if isinstance(result, ExspecError):
                sys.stderr.write(f"error: {describe(result)}\n")
                continue
            sys.stdout.write(result.text + "\n")
            sys.stdout.flush()
            sys.stderr.write(figures(result) + "\n")
    if errors:
        raise typer.Exit(EXIT_USAGE if isinstance(errors[0], CallerError) else EXIT_FAILED)


def _json_of(result: GenerationResult | ExspecError) -> dict[str, object]:
    return {"error": describe(result)} if isinstance(result, ExspecError) else all_of(result)


def _messages(text: str, system: str) -> list[ChatMessage]:
    from exspec.core.generation import ChatMessage

    head = [ChatMessage("system", system)] if system else []
    return [*head, ChatMessage("user", text)]


def _show(events: GenerationStream) -> GenerationResult:
    for piece in events.text_deltas():
        sys.stdout.write(piece)
        sys.stdout.flush()
    return events.final()


def _show_logprobs(client: Client, result: GenerationResult, model: str) -> None:
    if not result.logprobs:
        return
    from rich.console import Console

    texts = _texts(client, token_ids_of(result.logprobs), model)
    console = Console(stderr=True, highlight=False, emoji=False)
    console.print(logprobs_table(result, texts))


def _texts(client: Client, token_ids: Iterable[int], model: str) -> dict[int, str]:
    """What each token stands for; nothing if the model has no tokenizer."""
    try:
        return {one: client.detokenize([one], model=model) for one in token_ids}
    except CallerError:
        return {}
