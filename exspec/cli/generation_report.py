"""What is told of a finished generation beside its text: figures, logprobs, JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from exspec.cli.common import plain

if TYPE_CHECKING:
    from rich.table import Table

    from exspec.client import GenerationResult
    from exspec.core.choosing import TokenLogprobs


def figures(result: GenerationResult) -> str:
    """One line about how a generation went."""
    speculation, timings = result.speculation, result.timings
    number = result.usage.num_generated_tokens
    new = number - result.num_resumed_tokens
    parts = [
        f"{number} tokens ({result.usage.num_prompt_tokens} in the prompt)",
        f"{new / timings.total_seconds:.1f} tokens/s" if timings.total_seconds else "",
        f"first after {timings.time_to_first_token_seconds:.2f} s" if timings.total_seconds else "",
        f"{speculation.num_rounds} rounds",
        f"acceptance length {speculation.acceptance_length:.2f}",
        f"{speculation.num_accepted_looked_up_tokens} of {speculation.num_accepted_tokens} "
        "accepted tokens looked up"
        if speculation.num_looked_up_tokens
        else "",
        f"ended by {result.finish_reason.value}",
        f"seed {result.seed}" if result.seed else "",
    ]
    return "[" + ", ".join(part for part in parts if part) + "]"


def as_json(result: GenerationResult) -> dict[str, object]:
    """All of it, what follows from its numbers as well."""
    timings, speculation = result.timings, result.speculation
    shown: dict[str, object] = {
        **asdict(result),
        "logprobs": [_item(one) for one in result.logprobs],
        "prompt_logprobs": [_item(one) for one in result.prompt_logprobs],
        "speculation": {
            **asdict(speculation),
            "acceptance_length": speculation.acceptance_length,
            "acceptance_rate": speculation.acceptance_rate,
            "num_model_tokens": speculation.num_model_tokens,
            "num_accepted_model_tokens": speculation.num_accepted_model_tokens,
        },
        "timings": {
            **asdict(timings),
            "prefill_seconds": timings.prefill_seconds,
            "decode_seconds": timings.decode_seconds,
            "seconds_per_token": result.seconds_per_token,
        },
    }
    return {name: plain(value) for name, value in shown.items()}


def token_ids_of(logprobs: Iterable[TokenLogprobs]) -> set[int]:
    """All tokens that are spoken of."""
    return {
        token_id
        for one in logprobs
        for token_id in (one.token_id, *(other for other, _ in one.top))
    }


def logprobs_table(result: GenerationResult, texts: Mapping[int, str]) -> Table:
    """A line per token: what was chosen, how likely it was, and what was likeliest."""
    from rich.table import Table
    from rich.text import Text

    table = Table("place", "token", "logprob", "likeliest", box=None)
    for index, one in enumerate(result.logprobs):
        likeliest = "  ".join(
            f"{_token(token_id, texts)} {logprob:.3f}" for token_id, logprob in one.top
        )
        token, logprob = _token(one.token_id, texts), f"{one.logprob:.3f}"
        table.add_row(str(index), Text(token), logprob, Text(likeliest))
    return table


def _item(one: TokenLogprobs) -> dict[str, object]:
    return {
        "token_id": one.token_id,
        "logprob": one.logprob,
        "top": [{"token_id": token_id, "logprob": logprob} for token_id, logprob in one.top],
    }


def _token(token_id: int, texts: Mapping[int, str]) -> str:
    """Id and text; quoted, so that no text steers the terminal."""
    text = texts.get(token_id, "")
    return f"{token_id} {text!r}" if text else str(token_id)
