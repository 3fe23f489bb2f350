"""Where the prompts of an audit or a benchmark come from. Files in, prompts out; no tokenizer.

Which prompts are taken, and in which order, depends on the file and the number alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from exspec.audit.builtin_prompts import BUILTIN_PROMPTS
from exspec.core.errors import InvalidRequestError

BUILTIN = "builtin"
SPEC_BENCH = "spec_bench"
LINES = "lines"
KINDS_HELP = f"{BUILTIN}, {SPEC_BENCH}:PATH (JSON lines), or {LINES}:PATH (a prompt a line)"


@dataclass(frozen=True, slots=True)
class DatasetPrompt:
    """One prompt. `prompt_id` is unique in its data set; `category` may be empty."""

    prompt_id: str
    category: str
    text: str


def load_prompts(dataset: str, num_prompts: int | None = None) -> tuple[DatasetPrompt, ...]:
    """`num_prompts` prompts spread over the categories; None: all, in the order of the file.

    Raises:
        InvalidRequestError: an unknown kind, a missing or malformed file (named, with the line and
            the field), or fewer prompts than were asked for.
    """
    prompts = _read(dataset)
    if num_prompts is None:
        return prompts
    if not 1 <= num_prompts <= len(prompts):
        raise _bad(f"{dataset} has {len(prompts)} prompts, {num_prompts} were asked for")
    return spread(prompts, num_prompts)


def spread(prompts: Sequence[DatasetPrompt], num_prompts: int) -> tuple[DatasetPrompt, ...]:
    """The first prompt of every category, then the second of every one, …

    Categories come in the order of their first prompt; one that runs out is passed over.
    """
    by_category: dict[str, list[DatasetPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return tuple(prompt for prompt in turns if prompt is not None)[:num_prompts]


def _read(dataset: str) -> tuple[DatasetPrompt, ...]:
    kind, _, path = dataset.partition(":")
    if kind == BUILTIN and not path:
        return tuple(
            DatasetPrompt(f"{BUILTIN}-{index}", category, text)
            for index, (category, text) in enumerate(BUILTIN_PROMPTS)
        )
    if kind == SPEC_BENCH and path:
        return _unique(path, [_spec_bench_prompt(*line) for line in _lines(path)])
    if kind == LINES and path:
        return tuple(DatasetPrompt(f"line-{number}", "", text) for _, number, text in _lines(path))
    raise _bad(f"unknown data set {dataset!r}; expected {KINDS_HELP}")


def _lines(path: str) -> list[tuple[str, int, str]]:
    """(path, line number from 1, text) of every line that is not blank."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad(f"{path} is not UTF-8 text: byte {error.start}") from error
    # Not splitlines(): U+2028 and its like may stand inside a prompt.
    numbered = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    lines = [(path, number, line) for number, line in numbered if line.strip()]
    if not lines:
        raise _bad(f"{path} holds no prompt")
    return lines


def _spec_bench_prompt(path: str, number: int, line: str) -> DatasetPrompt:
    """The first turn of a question: `question_id`, `category`, `turns`."""
    where = f"{path}, line {number}"
    try:
        question: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise _bad(f"{where}: not JSON: {error.msg}") from error
    match question:
        case {"question_id": int() | str() as prompt_id, "category": str() as category, **rest}:
            return DatasetPrompt(str(prompt_id), category, _first_turn(where, rest.get("turns")))
        case dict():
            raise _bad(f"{where}: 'question_id' and 'category' must be there and be text")
        case _:
            raise _bad(f"{where}: not a JSON object")


def _first_turn(where: str, turns: object) -> str:
    match turns:
        case [str() as first, *_] if first:
            return first
        case _:
            raise _bad(f"{where}: 'turns' must be a list that begins with a text")


def _unique(path: str, prompts: Sequence[DatasetPrompt]) -> tuple[DatasetPrompt, ...]:
    """The prompts, if no id names two of them."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise _bad(f"{path}: 'question_id' {prompt.prompt_id} is there twice")
        seen.add(prompt.prompt_id)
    return tuple(prompts)


def _bad(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field="dataset")
