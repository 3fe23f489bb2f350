"""API keys as they are kept: a name and a hash, one line each. Text in, values out; no files.

    # a comment
    alice:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

A key is 32 random bytes, so one round of SHA-256 is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from exspec.core.errors import InvalidRequestError

KEY_PREFIX = "exspec_"
NUM_RANDOM_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose key it is, and the SHA-256 of the key."""

    name: str
    digest: bytes


def new_key() -> str:
    """A key nobody has seen."""
    return KEY_PREFIX + secrets.token_urlsafe(NUM_RANDOM_BYTES)


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """The keys of a file.

    Raises:
        InvalidRequestError: a line is no key, or a name or a key is there twice. The line's number
            is told, never what it says.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        name, _, digest = content.partition(":")
        if not _NAME.fullmatch(name) or not _DIGEST.fullmatch(digest):
            raise _unusable(f"line {number} is not name:sha256hex")
        keys.append(ApiKey(name, bytes.fromhex(digest)))
    if len({key.name for key in keys}) < len(keys):
        raise _unusable("a name is there twice")
    if len({key.digest for key in keys}) < len(keys):
        raise _unusable("two names have one key")
    return tuple(keys)


def find_name(keys: Sequence[ApiKey], presented: str) -> str | None:
    """Whose key it is; None if nobody's. Takes the same time for every key of a file."""
    digest = digest_of(presented)
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key.name
    return found


def add_key(text: str, name: str, key: str) -> str:
    """The file with one key more.

    Raises:
        InvalidRequestError: the name is taken or cannot be one, or the file is broken.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "a name has 1 to 64 letters, digits, dots, underscores and hyphens, and begins with a "
            f"letter or a digit; got {name!r}",
            field="name",
        )
    if any(known.name == name for known in parse_keys(text)):
        raise InvalidRequestError(f"{name} has a key already; remove it first", field="name")
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}{name}:{digest_of(key).hex()}\n"


def remove_key(text: str, name: str) -> str:
    """The file without the key of `name`; InvalidRequestError if there is none."""
    if all(known.name != name for known in parse_keys(text)):
        raise InvalidRequestError(f"{name} has no key", field="name")
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip().partition(":")[0] != name)


def _unusable(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"not a file of API keys: {why}", field="api_keys_file")
