"""The certificates of a cluster in a folder: which there are, for whom, and writing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from exspec.certs.authority import Authority, PemPair, Validity
from exspec.core.errors import InvalidRequestError
from exspec.core.peer_roles import PeerRole
from exspec.runtime.files import write_private, write_whole

AUTHORITY = "ca"
COORDINATOR_NAMES = ("coordinator", "localhost", "127.0.0.1", "::1")
"""What clients on the same machine, or in the same Compose project, call the coordinator."""

_NAMES = {
    PeerRole.COORDINATOR: "coordinator",
    PeerRole.WORKER: "worker",
    PeerRole.OPERATOR: "operator",
}


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate that was written, for people. `names` are those it is good for."""

    certfile: Path
    keyfile: Path
    names: tuple[str, ...]
    not_after: datetime


def make_certificates(
    folder: Path, hosts: Sequence[str], validity: Validity, *, may_overwrite: bool
) -> tuple[Made, ...]:
    """A new authority in `folder` and a certificate of it for every role.

    Keys are for their owner only (mode 0600). Nothing is written unless all can be.

    Raises:
        InvalidRequestError: a host cannot be one, or files are there and may not be overwritten.
        OSError: the folder cannot be written.
    """
    existing = [path for name in _all_names() for path in _paths(folder, name) if path.exists()]
    if existing and not may_overwrite:
        raise InvalidRequestError(
            f"{existing[0]} exists; --force makes a new authority, and what the old one signed "
            "counts no more",
            field="force",
        )
    authority = Authority(validity)
    coordinator_names = tuple(dict.fromkeys((*COORDINATOR_NAMES, *hosts)))
    pairs: dict[str, tuple[PemPair, tuple[str, ...]]] = {AUTHORITY: (authority.pair, ())}
    for role, name in _NAMES.items():
        names = coordinator_names if role is PeerRole.COORDINATOR else ()
        pairs[name] = (authority.issue(role, names, validity), (role.value, *names))
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        _write(folder, name, pair, names, validity) for name, (pair, names) in pairs.items()
    )


def valid_until(folder: Path) -> datetime | None:
    """When the first certificate of a folder expires; None if a file is missing or damaged."""
    pairs = [_paths(folder, name) for name in _all_names()]
    if not all(path.is_file() for pair in pairs for path in pair):
        return None
    try:
        certificates = [x509.load_pem_x509_certificate(pair[0].read_bytes()) for pair in pairs]
    except ValueError:
        return None
    return min(certificate.not_valid_after_utc for certificate in certificates)


def _write(
    folder: Path, name: str, pair: PemPair, names: tuple[str, ...], validity: Validity
) -> Made:
    certfile, keyfile = _paths(folder, name)
    write_private(keyfile, pair.key)
    write_whole(certfile, pair.certificate)
    return Made(certfile, keyfile, names, validity.not_after)


def _all_names() -> tuple[str, ...]:
    return (AUTHORITY, *_NAMES.values())


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}-key.pem"
