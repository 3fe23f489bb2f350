"""`exspec generate`: one prompt, text to stdout, figures to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from exspec.cli.common import AsJson, print_json, tells_errors
from exspec.cli.connect import Connect, connects

if TYPE_CHECKING:
    from exspec.client import GenerateOptions, GenerationResult, GenerationStream
    from exspec.core.generation import ChatMessage


PromptText = Annotated[str, typer.Argument(help='What to continue or answer; "-" reads stdin.')]
Chat = Annotated[
    bool, typer.Option(help="Apply the model's chat template, or continue the bare text.")
]
System = Annotated[str, typer.Option(help="System message, with --chat.")]
MaxTokens = Annotated[
    int | None, typer.Option(help="Most tokens to generate. Default: 256, if they fit.")
]
Stop = Annotated[
    list[str] | None, typer.Option(help="String that ends the text; may be given again.")
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
def generate(
    connect: Connect,
    prompt: PromptText,
    chat: Chat = True,
    system: System = "",
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    num_speculative_tokens: Speculation = None,
    priority: Priority = 0,
    model: Model = "",
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
    stream: Stream = True,
) -> None:
    """Generate text. What is generated never depends on how far one speculates."""
    text = sys.stdin.read() if prompt == "-" else prompt
    options: GenerateOptions = {
        "max_tokens": max_tokens,
        "stop": stop or (),
        "num_speculative_tokens": num_speculative_tokens,
        "priority": priority,
        "model": model,
        "timeout": timeout,
    }
    with (
        connect.client() as client,
        client.stream(_messages(text, system) if chat else text, **options) as events,
    ):
        result = _show(events) if stream and not as_json else events.final()
    if as_json:
        print_json(result)
        return
    sys.stdout.write("\n" if stream else result.text + "\n")
    sys.stdout.flush()
    sys.stderr.write(figures(result) + "\n")


def figures(result: GenerationResult) -> str:
    """One line about how a generation went."""
    speculation, seconds = result.speculation, result.timings.total_seconds
    number = result.usage.num_generated_tokens
    parts = [
        f"{number} tokens ({result.usage.num_prompt_tokens} in the prompt)",
        f"{number / seconds:.1f} tokens/s" if seconds else "",
        f"{speculation.num_rounds} rounds",
        f"acceptance length {speculation.acceptance_length:.2f}",
        f"ended by {result.finish_reason.value}",
    ]
    return "[" + ", ".join(part for part in parts if part) + "]"


def _messages(text: str, system: str) -> list[ChatMessage]:
    from exspec.core.generation import ChatMessage

    head = [ChatMessage("system", system)] if system else []
    return [*head, ChatMessage("user", text)]


def _show(events: GenerationStream) -> GenerationResult:
    for piece in events.text_deltas():
        sys.stdout.write(piece)
        sys.stdout.flush()
    return events.final()
