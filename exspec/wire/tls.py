"""TLS of servers and channels: from PEM files to the library's credentials. Nothing is generated.

A client port shows its certificate and asks for none. The cluster plane is mutual: both sides show
a certificate of one authority, and both check the role in it (`exspec.core.peer_roles`): a server
by `exspec.wire.auth.RoleGuard`, a caller by the name it expects.

Servers read their files again when they change (looked at with every handshake, at most once a
second); channels read them when they are opened.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc

from exspec.core.errors import InvalidRequestError
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import Clock
from exspec.runtime.watched import Watched

if TYPE_CHECKING:  # pydantic takes long to import, and the SDK does without
    from exspec.runtime.settings import ServiceSettings

PemPath = str | os.PathLike[str]

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of a service's own certificate and key, and of the authority of its peers."""

    certfile: str
    keyfile: str
    ca_certs: str

    def as_peer_of(self, role: PeerRole) -> TlsConfig:
        """For channels to a peer of a role, at whatever address it is."""
        return TlsConfig(self.ca_certs, self.certfile, self.keyfile, server_name=role.value)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How a caller speaks TLS.

    `ca_certs` is the authority the server's certificate must be signed by, None for those the
    system trusts. `certfile` and `keyfile` are the caller's own certificate, for servers that ask
    for one. `server_name` is the name the server's certificate must be for; empty: the address's.
    """

    ca_certs: PemPath | None = None
    certfile: PemPath | None = None
    keyfile: PemPath | None = None
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM bytes of a service, known to fit each other. Not to be shown: one is a private key."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


def tls_files(settings: ServiceSettings) -> TlsFiles | None:
    """The files a service was told, None for plain text."""
    if not settings.has_tls:
        return None
    return TlsFiles(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)


def client_port_credentials(files: TlsFiles, clock: Clock) -> grpc.ServerCredentials:
    """For a port of clients, which show no certificate.

    Raises:
        InvalidRequestError: names the setting and the file that cannot be used.
    """
    return _server_credentials(files, clock, require_client_authentication=False)


def cluster_credentials(files: TlsFiles, clock: Clock) -> grpc.ServerCredentials:
    """For a port of the cluster plane: the caller shows a certificate of the authority.

    Raises:
        InvalidRequestError: names the setting and the file that cannot be used.
    """
    return _server_credentials(files, clock, require_client_authentication=True)


def _server_credentials(
    files: TlsFiles, clock: Clock, *, require_client_authentication: bool
) -> grpc.ServerCredentials:
    paths = (files.certfile, files.keyfile, files.ca_certs)
    renewals = Renewals(Watched(paths, lambda: _read_identity(files), clock))
    return grpc.dynamic_ssl_server_credentials(
        renewals.configuration(),
        cast("Any", renewals.next_configuration),  # its stub does not know of None
        require_client_authentication=require_client_authentication,
    )


class Renewals:
    """What the library is told before every handshake: a configuration only if it is a new one.

    Whatever it is given replaces all that it made of the one before; replacing that with every
    handshake crashes the library when many handshakes run out of time together (grpc/grpc#36693).
    The library asks one thread after the other.
    """

    def __init__(self, identities: Watched[Identity]) -> None:
        """What the identities are now is to be given first."""
        self._identities = identities
        self._given = identities.current()

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The one that is in use."""
        own = self._given
        return grpc.ssl_server_certificate_configuration(
            [(own.key, own.certificate)], root_certificates=own.authority
        )

    def next_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """The one to use from now on; None for no change."""
        own = self._identities.current()
        if own == self._given:
            return None
        self._given = own
        return self.configuration()


def channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    """For a channel.

    Raises:
        InvalidRequestError: names the field and the file that cannot be used.
    """
    if (tls.certfile is None) != (tls.keyfile is None):
        raise InvalidRequestError(
            "ssl-certfile and ssl-keyfile belong together: give both, or none", field="ssl_keyfile"
        )
    authority = None if tls.ca_certs is None else _read_authority(tls.ca_certs)
    if tls.certfile is None or tls.keyfile is None:
        return grpc.ssl_channel_credentials(authority)
    certificate, key = _read_pair(tls.certfile, tls.keyfile)
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _read_identity(files: TlsFiles) -> Identity:
    certificate, key = _read_pair(files.certfile, files.keyfile)
    return Identity(certificate, key, _read_authority(files.ca_certs))


def _read_pair(certfile: PemPath, keyfile: PemPath) -> tuple[bytes, bytes]:
    """Certificate and key, which fit each other."""
    certificate = _read(certfile, "ssl_certfile", _CERTIFICATE)
    key = _read(keyfile, "ssl_keyfile", _PRIVATE_KEY)
    try:
        # The bytes are from the same files; a change in between is read again at the next look.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certfile, keyfile, password=_no_password
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidRequestError(
            f"--ssl-keyfile: {os.fspath(keyfile)} is not the key of the certificate in "
            f"{os.fspath(certfile)} (--ssl-certfile), or one of them is damaged: "
            f"{_reason(error)}",
            field="ssl_keyfile",
        ) from error
    return certificate, key


def _read_authority(path: PemPath) -> bytes:
    content = _read(path, "ssl_ca_certs", _CERTIFICATE)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii", "replace")
        )
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequestError(
            f"--ssl-ca-certs: {os.fspath(path)} cannot be read: {_reason(error)}",
            field="ssl_ca_certs",
        ) from error
    return content


def _read(path: PemPath, field: str, marker: bytes) -> bytes:
    flag = f"--{field.replace('_', '-')}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"{flag}: cannot read {os.fspath(path)}: {error.strerror}", field=field
        ) from error
    if marker not in content:
        kind = "certificate" if marker is _CERTIFICATE else "private key"
        raise InvalidRequestError(
            f"{flag}: {os.fspath(path)} holds no {kind} in PEM form", field=field
        )
    return content


def _no_password() -> str:
    """The library would ask for one at the terminal."""
    raise ValueError("it is encrypted, and there is nobody to ask for the password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
