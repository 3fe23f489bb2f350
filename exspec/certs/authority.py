"""A small certificate authority: who signs, and what a certificate of each role says.

Bytes in memory only; nothing is written and no clock is read here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from exspec.core.errors import InvalidRequestError
from exspec.core.peer_roles import PeerRole

ROLE_DOMAIN = "exspec.internal"

_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*")
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_USES = {
    PeerRole.COORDINATOR: (_SERVER, _CLIENT),
    PeerRole.WORKER: (_SERVER, _CLIENT),
    PeerRole.OPERATOR: (_CLIENT,),
}


@dataclass(frozen=True, slots=True)
class Validity:
    """When a certificate counts; both ends know their time zone."""

    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True)
class PemPair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates. Owns its key."""

    def __init__(self, validity: Validity) -> None:
        """A new one, with a key of its own."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _named("exspec test authority")
        self._certificate = (
            _builder(name, name, self._key.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pair(self) -> PemPair:
        """Its own certificate, which peers trust, and its key, which only signing needs."""
        return _as_pem(self._certificate, self._key)

    def issue(self, role: PeerRole, names: Sequence[str], validity: Validity) -> PemPair:
        """A certificate for a role, also good for `names` (DNS names and IP addresses).

        Raises:
            InvalidRequestError: one of them cannot be a name, or is a role's.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [x509.DNSName(role.value), *map(general_name, dict.fromkeys(names))]
        subject = _named(role.value)
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return _as_pem(certificate, key)


def general_name(host: str) -> x509.GeneralName:
    """A host as certificates name it; InvalidRequestError if it is none, or a role's name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host) or host.lower().endswith(ROLE_DOMAIN):
        raise InvalidRequestError(
            f"not a host name or an IP address, or one under {ROLE_DOMAIN}: {host!r}", field="host"
        )
    return x509.DNSName(host)


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.not_before)
        .not_valid_after(validity.not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _as_pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> PemPair:
    return PemPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
