"""Who calls, and whether they may: API keys of clients, roles of certificates.

A guard is asked before a call is served, and before its message is even parsed; it raises to
refuse. `exspec.wire.interceptor` runs the guards. Health is never guarded.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from exspec.core.api_keys import ApiKey, find_name, parse_keys
from exspec.core.errors import AuthenticationError, InvalidRequestError, PermissionDeniedError
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import Clock
from exspec.runtime.watched import Watched

logger = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
_SCHEME = "bearer"
_REFLECTION = "grpc.reflection."

_client: ContextVar[str] = ContextVar("exspec_client", default="")
"""Name of the API key of the call that is being served; every call has a context of its own."""


class Call(Protocol):
    """What of a servicer's context is used."""

    def peer(self) -> str: ...
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class Guard(Protocol):
    """Refuses a call by raising. `method` is its full name, `/package.Service/Method`."""

    def __call__(self, method: str, call: Call) -> None: ...


class Peer(Protocol):
    """A call, as far as one sees where it comes from."""

    def peer(self) -> str: ...


def client_name(call: Peer) -> str:
    """Whose call is being served: the name of its API key, else its host, without the port.

    To be asked in the call's own task, or one that it started.
    """
    return _client.get() or host_of(call.peer())


def host_of(peer: str) -> str:
    """The host of what gRPC calls a peer: `ipv4:127.0.0.1:1234`, `ipv6:%5B::1%5D:1234`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return unquote(rest).rpartition(":")[0].strip("[]")


def open_key_file(path: str, clock: Clock) -> Watched[tuple[ApiKey, ...]]:
    """The keys of a file, read again when it changes.

    Raises:
        InvalidRequestError: it cannot be read, or is no file of keys.
    """

    def read() -> tuple[ApiKey, ...]:
        try:
            return parse_keys(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"--api-keys-file: cannot read {path}: {error}", field="api_keys_file"
            ) from error
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"--api-keys-file: {path} is {error.message}", field="api_keys_file"
            ) from error

    return Watched((path,), read, clock)


class KeyGuard:
    """Lets in who presents a known API key, and notes the key's name for `client_name`."""

    def __init__(self, keys: Watched[tuple[ApiKey, ...]]) -> None:
        self._keys = keys

    def __call__(self, method: str, call: Call) -> None:
        """AuthenticationError says what is wrong with the key, and nothing of the key itself."""
        try:
            _client.set(self._require_name(call))
        except AuthenticationError as error:
            logger.info(
                "auth.refused method=%s peer=%s reason=%s", method, call.peer(), error.message
            )
            raise

    def _require_name(self, call: Call) -> str:
        name = find_name(self._keys.current(), presented_key(call.invocation_metadata() or ()))
        if name is None:
            raise AuthenticationError("the API key is not known")
        return name


def presented_key(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The API key among the metadata of a call; AuthenticationError if there is not just one."""
    values = [value for name, value in metadata if name == AUTHORIZATION]
    if not values:
        raise AuthenticationError("an API key is needed, as metadata 'authorization: Bearer KEY'")
    scheme, _, key = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != _SCHEME or not key.strip():
        raise AuthenticationError("the metadata 'authorization' must be 'Bearer KEY', once")
    return key.strip()


class RoleGuard:
    """Lets in certificates by role: per service, who may call it. What is not named is closed.

    Reflection is open to every role.
    """

    def __init__(self, allowed: Mapping[str, Collection[PeerRole]]) -> None:
        self._allowed = allowed

    def __call__(self, method: str, call: Call) -> None:
        """PermissionDeniedError names who may call."""
        service = method.strip("/").partition("/")[0]
        allowed = self._roles_for(service)
        if allowed.isdisjoint(roles_of(call)):
            names = ", ".join(sorted(role.value for role in allowed)) or "nobody"
            logger.info("auth.refused method=%s peer=%s reason=role", method, call.peer())
            raise PermissionDeniedError(f"{service} is open to certificates of {names} only")

    def _roles_for(self, service: str) -> frozenset[PeerRole]:
        if service.startswith(_REFLECTION):
            return frozenset(PeerRole)
        return frozenset(self._allowed.get(service, ()))


class MethodGuard:
    """Closes all methods of one service on this port, but for some."""

    def __init__(self, service: str, methods: Collection[str], advice: str) -> None:
        self._prefix = f"/{service}/"
        self._open = frozenset(self._prefix + method for method in methods)
        self._advice = advice

    def __call__(self, method: str, call: Call) -> None:  # noqa: ARG002 - a guard gets both
        """PermissionDeniedError says where the method is served."""
        if method.startswith(self._prefix) and method not in self._open:
            raise PermissionDeniedError(f"{method.strip('/')} is closed here: {self._advice}")


def roles_of(call: Call) -> frozenset[PeerRole]:
    """The roles that the caller's verified certificate speaks for; none in plain text."""
    names = {
        bytes(name).decode("ascii", "replace") for name in call.auth_context().get("peer_dns", ())
    }
    return frozenset(role for role in PeerRole if role.value in names)
