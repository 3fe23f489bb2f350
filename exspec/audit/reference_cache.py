"""A file of references that were computed before, so that a second layout needs no second run.

JSON, checked when it is read; never pickle. Knows keys and token ids, no model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

from exspec.core.choosing import ChoiceRules
from exspec.core.errors import InvalidRequestError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """All that a reference is a function of. `numerics` names the libraries that computed it."""

    fingerprint: str
    dtype: str
    numerics: str
    prompt_tokens: tuple[int, ...]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    rules: ChoiceRules | None = None

    @property
    def digest(self) -> str:
        """A name for it."""
        parts: list[object] = [
            self.fingerprint,
            self.dtype,
            self.numerics,
            self.prompt_tokens,
            self.max_tokens,
            self.stop_token_ids,
        ]
        if self.rules is not None:
            parts.append(asdict(self.rules))
        return sha256(json.dumps(parts, default=_enum_value).encode()).hexdigest()


class ReferenceCache:
    """Owns the known references and their file. Without a path it lives as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file, if there is one.

        Raises:
            InvalidRequestError: it cannot be read, or is not such a file.
        """
        self._path = path
        self._entries: dict[str, tuple[int, ...]] = {}
        self._num_unsaved = 0
        if path is not None and path.exists():
            self._entries = _read(path)

    @property
    def num_references(self) -> int:
        """How many it knows."""
        return len(self._entries)

    def get(self, key: ReferenceKey) -> tuple[int, ...] | None:
        """The reference, or None if it is not known."""
        tokens = self._entries.get(key.digest)
        if tokens is not None and not _is_reference(tokens, key.max_tokens, key.stop_token_ids):
            raise _bad(f"{self._path} holds a reference that no decoding can give")
        return tokens

    def put(self, key: ReferenceKey, tokens: Sequence[int]) -> None:
        """Remember it; `save` writes it."""
        self._entries[key.digest] = tuple(tokens)
        self._num_unsaved += 1

    def save(self) -> None:
        """Write the file, all at once, if anything is new."""
        if self._path is None or not self._num_unsaved:
            return
        document = {"version": _VERSION, "references": self._entries}
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(document), encoding="utf-8")
            part.replace(self._path)
        except OSError as error:
            raise _bad(f"{self._path} cannot be written: {error.strerror}") from error
        self._num_unsaved = 0


def _enum_value(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value


def _read(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _bad(f"{path} is not JSON: {error}") from error
    match document:
        case {"version": int(version), "references": dict() as references} if version == _VERSION:
            return {
                _checked_digest(path, k): _checked_tokens(path, v) for k, v in references.items()
            }
        case _:
            raise _bad(f"{path} is not a reference cache of version {_VERSION}")


def _checked_digest(path: Path, digest: object) -> str:
    if not isinstance(digest, str) or len(digest) != sha256().digest_size * 2:
        raise _bad(f"{path}: {digest!r} is not a key")
    return digest


def _checked_tokens(path: Path, tokens: object) -> tuple[int, ...]:
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        raise _bad(f"{path}: a reference is not a list of token ids")
    return tuple(tokens)


def _is_reference(tokens: Sequence[int], max_tokens: int, stop_token_ids: Collection[int]) -> bool:
    """Ends with its first stop token, or at the bound."""
    if not 1 <= len(tokens) <= max_tokens or any(t in stop_token_ids for t in tokens[:-1]):
        return False
    return len(tokens) == max_tokens or tokens[-1] in stop_token_ids


def _bad(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field="reference_cache")
