"""How tokens are chosen and what is reported of them, as options of a command. Nothing runs here.

@app.command()
@samples
def generate(sampling: Sampling, …): …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from exspec.cli.bundles import bundled

R = TypeVar("R")

Sampling = dict[str, Any]
"""Keywords of `exspec.client.GenerateOptions`; None was not given."""

CHOICE = "Which token is chosen"
TOKENS = "Which tokens may be chosen"
MATCH = "What the text must match"
LENGTH = "How long"
REPORT = "What is reported"


def samples(command: Callable[..., R]) -> Callable[..., R]:
    """A command with the options of `_options`; it gets them together as `sampling`."""
    return bundled("sampling", _options)(command)


def _number(help_text: str) -> Any:  # noqa: ANN401 - what typer returns
    return typer.Option(rich_help_panel=CHOICE, help=help_text)


def _options(
    *,
    temperature: Annotated[
        float | None, _number("0 is greedy; 1 is the model's own distribution; up to 100.")
    ] = None,
    top_k: Annotated[int | None, _number("Draw from so many likeliest tokens; 0: all.")] = None,
    top_p: Annotated[
        float | None, _number("Draw from the fewest likeliest tokens of so much probability.")
    ] = None,
    min_p: Annotated[
        float | None, _number("Draw from tokens at least so likely, relative to the likeliest.")
    ] = None,
    typical_p: Annotated[
        float | None, _number("Draw from the locally typical tokens of so much probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, _number("Above 1: tokens of prompt and text become less likely.")
    ] = None,
    presence_penalty: Annotated[
        float | None, _number("-2 to 2, subtracted from logits of tokens of the text.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, _number("Likewise, as often as they are in the text.")
    ] = None,
    seed: Annotated[
        int | None, _number("The same seed gives the same text. Default: drawn, and told.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=VALUE",
            rich_help_panel=TOKENS,
            help="Added to the logit of a token, -100 to 100; may be given again.",
        ),
    ] = None,
    bad_word: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=TOKENS, help="String that is not generated; may be given again."
        ),
    ] = None,
    banned_token_id: Annotated[
        list[int] | None,
        typer.Option(rich_help_panel=TOKENS, help="Not chosen; may be given again."),
    ] = None,
    allowed_token_id: Annotated[
        list[int] | None,
        typer.Option(
            rich_help_panel=TOKENS, help="Only such tokens are chosen; may be given again."
        ),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE|TEXT", rich_help_panel=MATCH, help="A JSON schema."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(rich_help_panel=MATCH, help="A regular expression.")
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|TEXT", rich_help_panel=MATCH, help="A grammar in the Lark notation."
        ),
    ] = None,
    min_tokens: Annotated[
        int | None,
        typer.Option(rich_help_panel=LENGTH, help="Nothing ends the text before so many."),
    ] = None,
    stop_token_id: Annotated[
        list[int] | None,
        typer.Option(rich_help_panel=LENGTH, help="Token that ends it; may be given again."),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", rich_help_panel=LENGTH, help="Go on after the model's stop tokens."
        ),
    ] = False,
    include_stop_str_in_output: Annotated[
        bool,
        typer.Option(
            "--include-stop-str-in-output",
            rich_help_panel=LENGTH,
            help="The text ends after a stop string, not before it.",
        ),
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=REPORT,
            help="Logprobs of the tokens, and of the N likeliest at each place; 0 to 20.",
        ),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=REPORT, help="Likewise of the prompt; with --json."
        ),
    ] = None,
) -> Sampling:
    """The options themselves."""
    return {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "logit_bias": _bias(logit_bias or ()),
        "bad_words": bad_word,
        "banned_token_ids": banned_token_id,
        "allowed_token_ids": allowed_token_id,
        "json_schema": _read(json_schema, "--json-schema", is_text=("{",)),
        "regex": regex,
        "grammar": _read(grammar, "--grammar", is_text=(":", "\n")),
        "min_tokens": min_tokens,
        "stop_token_ids": stop_token_id,
        "ignore_eos": ignore_eos,
        "include_stop_str_in_output": include_stop_str_in_output,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }


def _bias(given: Sequence[str]) -> dict[int, float] | None:
    biases: dict[int, float] = {}
    for item in given:
        token_id, _, value = item.partition("=")
        try:
            biases[int(token_id)] = float(value)
        except ValueError as error:
            raise typer.BadParameter(
                f"{item!r} is not a token id, an equals sign and a number",
                param_hint="--logit-bias",
            ) from error
    return biases or None


def _read(given: str | None, option: str, *, is_text: Sequence[str]) -> str | None:
    """What a file of this name holds, or the text itself, which has one of `is_text` in it."""
    if given is None:
        return None
    try:
        if Path(given).is_file():
            return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if not any(sign in given for sign in is_text):
            raise typer.BadParameter(str(error), param_hint=option) from error
    if not any(sign in given for sign in is_text):
        raise typer.BadParameter(f"there is no file {given!r}", param_hint=option)
    return given
