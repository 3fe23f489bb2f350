"""Certificates: what `exspec certs` makes, files that cannot be used, changes at run time."""

from __future__ import annotations

import json
import logging
import shutil
import ssl
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from exspec.certs.authority import Authority, Validity
from exspec.certs.folder import make_certificates
from exspec.cli.main import app
from exspec.core.errors import InvalidRequestError
from exspec.core.ids import Role
from exspec.core.peer_roles import PeerRole
from exspec.runtime.clock import monotonic, now
from exspec.runtime.watched import Watched
from exspec.wire.channel import open_channel
from exspec.wire.tls import (
    Identity,
    Renewals,
    TlsConfig,
    TlsFiles,
    client_port_credentials,
    cluster_credentials,
)
from tests.security.security_world import (
    KEY,
    LIST_MODELS,
    bearer,
    outcome,
    secure_world,
    write_pair,
)

FILES = [
    f"{name}{end}"
    for name in ("ca", "coordinator", "operator", "worker")
    for end in ("-key.pem", ".pem")
]
ROLES = {role.name.lower(): role for role in PeerRole}


def _certs(*args, code=0):
    result = CliRunner().invoke(app, ["certs", *map(str, args)])
    assert result.exit_code == code, result.output
    return result


def _names(path):
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names], certificate


def test_the_command_makes_an_authority_and_a_certificate_per_role(tmp_path):
    folder = tmp_path / "new" / "certs"
    shown = _certs(folder, "--host", "gpu-box", "--host", "10.0.0.7", "--days", 2).stdout
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for path in folder.iterdir():
        is_key = path.name.endswith("-key.pem")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if is_key else 0o644)
        assert path.name in shown
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    for name, role in ROLES.items():
        found, certificate = _names(folder / f"{name}.pem")
        extra = ["coordinator", "localhost", "127.0.0.1", "::1", "gpu-box", "10.0.0.7"]
        assert found == [role.value, *(extra if role is PeerRole.COORDINATOR else [])]
        certificate.verify_directly_issued_by(authority)
        left = certificate.not_valid_after_utc - now()
        assert timedelta(days=1) < left <= timedelta(days=2)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")


def test_the_command_prints_json(tmp_path):
    made = json.loads(_certs(tmp_path, "--json").stdout)
    assert made[0]["certfile"] == str(tmp_path / "ca.pem")
    assert made[2]["names"] == [PeerRole.WORKER.value]


def test_nothing_is_overwritten_unless_asked_for(tmp_path):
    (tmp_path / "worker-key.pem").write_text("mine")
    assert "worker-key.pem exists" in _certs(tmp_path, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["worker-key.pem"]
    _certs(tmp_path, "--force")
    first = (tmp_path / "ca.pem").read_bytes()
    _certs(tmp_path, "--force")
    assert (tmp_path / "ca.pem").read_bytes() != first


def test_what_lasts_is_kept_if_asked_for(tmp_path):
    def made(*args):
        _certs(tmp_path, *args)
        return (tmp_path / "ca.pem").read_bytes(), (tmp_path / "worker.pem").read_bytes()

    first = made("--keep")
    assert made("--keep") == first
    (tmp_path / "worker-key.pem").unlink()
    second = made("--keep", "--days", 29)
    assert second != first
    third = made("--keep")
    assert third != second
    (tmp_path / "worker.pem").write_text("damaged")
    assert made("--keep") != third


@pytest.mark.parametrize("host", ["", "a b", "worker.exspec.internal", "x/y", "-a"])
def test_a_host_that_cannot_be_one_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(InvalidRequestError) as caught:
        make_certificates(
            tmp_path, [host], Validity(now(), now() + timedelta(days=1)), may_overwrite=False
        )
    assert caught.value.field == "host"
    assert not list(tmp_path.iterdir())


def test_wildcards_and_addresses_are_hosts(tmp_path):
    hosts = ["*.example.org", "fe80::1", "coordinator"]
    day = timedelta(days=1)
    made = make_certificates(tmp_path, hosts, Validity(now(), now() + day), may_overwrite=False)
    assert made[1].names[-2:] == ("*.example.org", "fe80::1")


def _spoiled(certificates, tmp_path, spoil):
    good = certificates.files(PeerRole.COORDINATOR)
    paths = {"certfile": good.certfile, "keyfile": good.keyfile, "ca_certs": good.ca_certs}
    for name, path in paths.items():
        paths[name] = str(shutil.copy(path, tmp_path / f"{name}.pem"))
    spoil(tmp_path)
    return TlsFiles(**paths)


def _swap(tmp_path, certificates):
    other = certificates.files(PeerRole.WORKER)
    shutil.copy(other.keyfile, tmp_path / "keyfile.pem")


def _encrypt(tmp_path):
    path = tmp_path / "keyfile.pem"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )


SPOILERS = {
    "no certificate file": ("ssl_certfile", lambda p, c: (p / "certfile.pem").unlink()),
    "no key file": ("ssl_keyfile", lambda p, c: (p / "keyfile.pem").unlink()),
    "no authority file": ("ssl_ca_certs", lambda p, c: (p / "ca_certs.pem").unlink()),
    "certificate is text": ("ssl_certfile", lambda p, c: (p / "certfile.pem").write_text("x")),
    "key is a certificate": (
        "ssl_keyfile",
        lambda p, c: shutil.copy(p / "certfile.pem", p / "keyfile.pem"),
    ),
    "key of another": ("ssl_keyfile", lambda p, c: _swap(p, c)),
    "key is encrypted": ("ssl_keyfile", lambda p, c: _encrypt(p)),
    "certificate is cut": (
        "ssl_keyfile",
        lambda p, c: (p / "certfile.pem").write_text("-----BEGIN CERTIFICATE-----\nAA"),
    ),
    "authority is cut": (
        "ssl_ca_certs",
        lambda p, c: (p / "ca_certs.pem").write_text("-----BEGIN CERTIFICATE-----\nAA"),
    ),
}


@pytest.mark.parametrize("name", SPOILERS)
def test_files_that_cannot_be_used_are_named_with_their_setting(certificates, tmp_path, name):
    field, spoil = SPOILERS[name]
    files = _spoiled(certificates, tmp_path, lambda folder: spoil(folder, certificates))
    for use in (
        lambda: client_port_credentials(files, monotonic),
        lambda: cluster_credentials(files, monotonic),
        lambda: open_channel("127.0.0.1:1", files.as_peer_of(PeerRole.WORKER)),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            use()
        assert caught.value.field == field
        assert f"--{field.replace('_', '-')}" in caught.value.message
        assert str(tmp_path) in caught.value.message


def test_a_certificate_without_its_key_is_refused(certificates):
    files = certificates.files(PeerRole.OPERATOR)
    with pytest.raises(InvalidRequestError, match="both"):
        open_channel("127.0.0.1:1", TlsConfig(certfile=files.certfile))


async def test_a_running_coordinator_shows_a_new_certificate_and_trusts_a_new_authority(
    certificates, tmp_path
):
    """A replaced set counts at the next handshake; one that is half replaced changes nothing."""
    good = certificates.files(PeerRole.COORDINATOR)
    own = {"ssl_certfile": tmp_path / "c.pem", "ssl_keyfile": tmp_path / "c-key.pem",
           "ssl_ca_certs": tmp_path / "ca.pem"}  # fmt: skip
    for path, source in zip(
        own.values(), (good.certfile, good.keyfile, good.ca_certs), strict=True
    ):
        shutil.copy(source, path)
    validity = Validity(now() - timedelta(days=1), now() + timedelta(days=1))
    authority = Authority(validity)
    write_pair(tmp_path, "new-ca", authority.pair)
    new = authority.issue(PeerRole.COORDINATOR, ["127.0.0.1"], validity)
    old_tls = TlsConfig(certificates.authority())
    new_tls = TlsConfig(tmp_path / "new-ca.pem")
    settings = {name: str(path) for name, path in own.items()}
    async with secure_world(certificates, tmp_path, **settings) as world:

        async def ask(tls):
            return await outcome(world.client_address, LIST_MODELS, tls, bearer(KEY))

        assert (await ask(old_tls), await ask(new_tls)) == ("OK", "UNAVAILABLE")
        own["ssl_certfile"].write_bytes(new.certificate)  # the key does not fit yet
        assert (await ask(old_tls), await ask(new_tls)) == ("OK", "UNAVAILABLE")
        own["ssl_keyfile"].write_bytes(new.key)
        assert (await ask(old_tls), await ask(new_tls)) == ("UNAVAILABLE", "OK")


async def test_a_worker_joins_once_its_certificate_was_replaced_by_a_good_one(
    world, certificates, tmp_path, caplog
):
    """It was refused as expired, keeps trying, and reads its files again."""
    expired = certificates.files(PeerRole.WORKER, "expired")
    good = certificates.files(PeerRole.WORKER)
    files = TlsFiles(str(tmp_path / "w.pem"), str(tmp_path / "w-key.pem"), good.ca_certs)
    shutil.copy(expired.certfile, files.certfile)
    shutil.copy(expired.keyfile, files.keyfile)
    caplog.set_level(logging.INFO)
    worker = await world.start(Role.TARGET, files=files)
    await world.until(lambda: "registration.waiting" in caplog.text)
    assert world.status(worker) == (None, "")
    shutil.copy(good.keyfile, files.keyfile)
    shutil.copy(good.certfile, files.certfile)
    await world.until_ready(worker)


def test_the_library_is_given_a_configuration_only_when_it_is_a_new_one(certificates, tmp_path):
    """It crashes, now and then, when what it has is replaced with every handshake."""
    good, other = certificates.files(PeerRole.COORDINATOR), certificates.files(PeerRole.WORKER)
    files = [str(tmp_path / name) for name in ("c.pem", "c-key.pem", "ca.pem")]

    def put(certfile, keyfile, ca_certs):
        for source, path in zip((certfile, keyfile, ca_certs), files, strict=True):
            shutil.copy(source, path)

    def read():
        return Identity(*(Path(path).read_bytes() for path in files))

    put(good.certfile, good.keyfile, good.ca_certs)
    renewals = Renewals(Watched(files, read, lambda: 0.0))
    assert renewals.configuration() is not None
    assert renewals.next_configuration() is None
    put(good.certfile, good.keyfile, good.ca_certs)  # written again as they were
    assert renewals.next_configuration() is None
    put(other.certfile, other.keyfile, other.ca_certs)
    assert renewals.next_configuration() is not None
    assert renewals.next_configuration() is None
