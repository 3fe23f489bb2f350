"""A certificate authority for one test."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Identity:
    """PEM files of one peer."""

    certfile: Path
    keyfile: Path


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca_certs = folder / f"{name}.pem"
        certificate = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._write(certificate.sign(self._key, hashes.SHA256()), self.ca_certs)

    def issue(self, name: str) -> Identity:
        """A new identity."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = self._builder(subject, key).add_extension(address, critical=False)
        made = Identity(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        self._write(certificate.sign(self._key, hashes.SHA256()), made.certfile)
        made.keyfile.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """Trusts this authority, and shows the identity if there is one."""
        context = ssl.create_default_context(cafile=self.ca_certs)
        if identity is not None:
            context.load_cert_chain(identity.certfile, identity.keyfile)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    @staticmethod
    def _write(certificate: x509.Certificate, path: Path) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
