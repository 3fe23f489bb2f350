"""Which tokens a draft model chooses among: those it came with, a file's, or the likeliest N.

The target decides, so the choice costs acceptance at most. Finds ids; the head is cut in
`exspec.engine.heads`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from exspec.core.errors import InvalidRequestError, UnsupportedModelError
from exspec.engine.loaded import LoadedModel
from exspec.engine.sources import ModelSource
from exspec.engine.token_ranking import rank_tokens

WHOLE = "all"
"""The whole head, also where the model brings a list."""
FILE_NAME = "draft_vocab.json"
"""Beside the weights, it lists what a model drafts over unless told otherwise."""

_FIELD = "draft_vocab"


def find_draft_vocabulary(wanted: str, loaded: LoadedModel) -> tuple[int, ...] | None:
    """Rising ids of the rows the head keeps; None: all of them.

    `wanted` is a JSON file, a number of tokens, "all", or empty for what the model brings. Of a
    number special tokens and those that end a text are always a part, and one that takes in all of
    the tokenizer's tokens is the whole head.

    Raises:
        InvalidRequestError: the number has no room for those, or the file is not there or is no
            such list.
        UnsupportedModelError: the model brings ids that its head does not have.
    """
    if wanted == WHOLE:
        return None
    if not wanted:
        if wrong := _outside(loaded.draft_vocabulary, loaded):
            raise UnsupportedModelError(f"{FILE_NAME}: {wrong}")
        return tuple(sorted(loaded.draft_vocabulary)) or None
    if wanted[wanted.startswith(("+", "-")) :].isdecimal():
        return _likeliest(int(wanted), loaded)
    try:
        ids = _read_ids(Path(wanted).expanduser())
    except (OSError, RuntimeError, ValueError) as error:
        raise _bad(f"draft vocabulary {wanted} {_reason(error)}") from error
    if wrong := _outside(ids, loaded) or ("" if ids else "it lists no token id"):
        raise _bad(f"draft vocabulary {wanted}: {wrong}")
    return tuple(sorted(ids))


def read_draft_vocabulary(source: ModelSource) -> tuple[int, ...]:
    """The ids listed in the `draft_vocab.json` beside the weights; empty if there is none.

    Raises:
        UnsupportedModelError: it is no list of token ids.
    """
    path = Path(source.location) / FILE_NAME
    if not path.is_file():
        return ()
    try:
        return _read_ids(path)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} {_reason(error)}") from error


def _likeliest(number: int, loaded: LoadedModel) -> tuple[int, ...] | None:
    """Special tokens, what ends a text, and the likeliest others."""
    vocab_size = loaded.facts.vocab_size
    ranking = rank_tokens(loaded.tokenizer.tokenizer_json)
    essential = {*(i for i in ranking.special if i < vocab_size), *loaded.facts.stop_token_ids}
    ranked = ranking.ranked or range(vocab_size)
    others = [i for i in ranked if i < vocab_size and i not in essential]
    if number < max(1, len(essential)):
        raise _bad(
            f"a draft vocabulary of {number} tokens is too small: at least {max(1, len(essential))}"
            f", as many as {loaded.facts.name} has special tokens"
        )
    num_others = number - len(essential)
    return None if num_others >= len(others) else tuple(sorted({*essential, *others[:num_others]}))


def _read_ids(path: Path) -> tuple[int, ...]:
    """In the order of the file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or no list of different token ids.
    """
    try:
        content: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    match content:
        case [*listed] | {"token_ids": [*listed]}:
            return _token_ids(listed)
        case _:
            raise ValueError('is neither a list of token ids nor an object with one, "token_ids"')


def _token_ids(listed: Iterable[object]) -> tuple[int, ...]:
    """The entries, if each is a token id of its own."""
    ids: dict[int, None] = {}
    for place, entry in enumerate(listed):
        if type(entry) is not int or entry < 0:
            raise ValueError(f"is not a list of token ids: entry {place} is {str(entry)[:40]!r}")
        if entry in ids:
            raise ValueError(f"lists token id {entry} twice")
        ids[entry] = None
    return tuple(ids)


def _outside(ids: Sequence[int], loaded: LoadedModel) -> str:
    """What is wrong with ids that the head has no rows for; empty if it has them all."""
    size = loaded.facts.vocab_size
    outside = [i for i in ids if i >= size]
    if not outside:
        return ""
    return f"token id {outside[0]} is outside [0, {size}), the vocabulary of {loaded.facts.name}"


def _reason(error: Exception) -> str:
    """As the rest of a sentence."""
    if isinstance(error, FileNotFoundError):
        return 'does not exist; give a JSON file of token ids, a number of tokens, or "all"'
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _bad(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field=_FIELD)
